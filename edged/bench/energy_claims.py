"""The ecoJoin paper's statements, each with its value in the simulation.

A saving is the largest one at a rate that both joins sustain, of the whole power, as in the paper.
HELLS on the GPU is an interval, so savings against it are given at both of its ends. The rates
within a budget are those of Figure 3's grid.
"""

from __future__ import annotations

from typing import Any

from edged.bench import energy_published as published

Rows = list[dict[str, Any]]
OWN = ("edged", "edged daemon")
NEAR = 0.25
"""A statement counts as reproduced if the simulated value is this near to it, or better."""


def by_rate(rows: Rows, variant: str) -> dict[int, float]:
    """Power (W) of a variant by rate; rates that it does not sustain are absent."""
    return {r["rate"]: r["watts"] for r in rows if r["variant"] == variant and r["watts"]}


def claims(rows3: Rows, rows4: Rows, sustained: dict[str, Any]) -> Rows:
    """All statements: text, published value, unit, `here`, `rate`, `reproduced`; `own` has the
    values of edged's join and daemon where the statement is about joins."""
    fb, ab, fs = (by_rate(rows4, name) for name in published.FIGURE4)
    found = [
        _claim(published.FIGURE4["FB"], "figure 4", published.FB_RATE, "tuples/s",
               sustained["FB"]["tuples_per_s_per_stream"]),
        _claim(published.FIGURE4["AB"], "figure 4", published.AB_SAVES, "%", *_share(fb, ab)),
        _claim(published.FIGURE4["AB+FS"], "figure 4", published.FS_SAVES, "%", *_share(ab, fs)),
        _claim("together more than 1 W", "figure 4", published.BOTH_SAVE_W, "W",
               *_most({r: fb[r] - fs[r] for r in fb.keys() & fs.keys()})),
    ]  # fmt: skip
    return [*found, *_against_joins(rows3)]


def _against_joins(rows: Rows) -> Rows:
    eco, handshake = by_rate(rows, "ecoJoin"), by_rate(rows, "Handshake")
    hells, least = by_rate(rows, "HELLS"), _least(rows, "HELLS")
    budget_w = published.FIGURE3["HELLS"][-1]
    against_handshake = _claim(published.HANDSHAKE, "3.2.1", published.HANDSHAKE_SAVES, "%",
                               *_share(handshake, eco))  # fmt: skip
    against_hells = _claim(
        published.HELLS, "3.2.1", published.HELLS_SAVES, "%", *_share(least, eco)
    )
    scaled = _claim(published.SCALED, "abstract", published.SCALED_TIMES, "times",
                    _times(hells, eco, budget_w))  # fmt: skip
    for name in OWN:
        own = by_rate(rows, name)
        against_handshake["own"][name] = _share(handshake, own)[0]
        against_hells["own"][name] = _share(least, own)[0]
        scaled["own"][name] = _times(hells, own, budget_w)
    return [against_handshake, against_hells, scaled | {"budget_watts": budget_w}]


def _claim(
    text: str, where: str, value: float, unit: str, here: float, rate: int | None = None
) -> dict[str, Any]:
    found = {"claim": text, "where": where, "published": value, "unit": unit, "here": here,
             "reproduced": here >= (1 - NEAR) * value, "own": {}}  # fmt: skip
    if unit == "tuples/s":  # a bound from above
        found["reproduced"] = here <= (1 + NEAR) * value
    return found | ({} if rate is None else {"rate": rate})


def _least(rows: Rows, variant: str) -> dict[int, float]:
    """The lower ends of a variant's intervals."""
    return {r["rate"]: r["interval_watts"][0] for r in rows
            if r["variant"] == variant and r["interval_watts"]}  # fmt: skip


def _share(before: dict[int, float], after: dict[int, float]) -> tuple[float, int]:
    return _most({r: 1 - after[r] / before[r] for r in before.keys() & after.keys()})


def _most(saved: dict[int, float]) -> tuple[float, int]:
    rate = max(sorted(saved), key=lambda r: saved[r])
    return saved[rate], rate


def _times(before: dict[int, float], after: dict[int, float], budget_w: float) -> float:
    """The highest rate of `after` within the budget over that of `before`."""
    low, high = (max(r for r, w in of.items() if w <= budget_w) for of in (before, after))
    return high / low
