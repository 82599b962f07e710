"""Arms of query 4, each in a process of its own, against DuckDB's answer to the official text."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edged.bench.query4 import ARMS, YEARS, Arm, changed, read_tables
from edged.bench.tpcds import AMOUNTS, CHANNELS
from edged.errors import EdgedError
from edged.simulate.rows import clocks_of, default_mode
from edged.simulate.work import HOST_HZ, scale_of
from governors.board_tariffs import ModelTariff
from governors.power_models import power_model
from governors.profile_reader import load

BOARD = "orin-nano"
"""The board of the simulated joules."""


def expected(directory: str) -> list[dict[str, Any]]:
    """`totals` and `answers` of DuckDB, before and after the changes."""
    import duckdb

    found = []
    text = Path(directory, "query4.sql").read_text()
    before = read_tables(directory)
    for tables in (before, changed(before)):
        base = duckdb.connect()
        for name, table in tables.items():
            base.register(name, table)
        totals = {name: list(_totals(base, name)) for name in CHANNELS}
        rows = [list(row) for row in base.execute(text).fetchall()]
        rows.sort(key=lambda row: [value or "" for value in row])
        found.append({"totals": totals, "answers": rows})
    return found


def _totals(base: Any, table: str) -> tuple[int, ...]:
    prefix, customer = CHANNELS[table]
    listed, wholesale, discount, sales = (f"{prefix}_{name}" for name in AMOUNTS)
    groups = (
        f"select c_customer_sk * {YEARS} + d_year g, "
        f"sum(cast(({listed} - {wholesale} - {discount} + {sales}) * 100 as bigint)) t "
        f"from customer join {table} on c_customer_sk = {customer} "
        f"join date_dim on {prefix}_sold_date_sk = d_date_sk group by g"
    )
    row = base.execute(
        f"select count(*), coalesce(sum(t), 0), coalesce(sum(g % 1000003 * t), 0) "
        f"from ({groups}) where t <> 0"
    ).fetchone()
    return tuple(int(value) for value in row)


def measure_arms(
    directory: str,
    cells: Sequence[tuple[str, str]],
    memory_bytes: int,
    limit_bytes: int,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """A row for each (member, arm), with `equal`: sums and query 4, before and after the changes.

    Raises EdgedError with the last line of an arm that failed.
    """
    want = expected(directory)
    rows = []
    for member, arm in cells:
        say(f"query 4, {member}, {arm}")
        state = tempfile.mkdtemp(prefix="edged-query4-", dir=".")
        try:
            given = Arm(directory, member, arm, state, memory_bytes, limit_bytes)
            row = _in_a_process(given)
        finally:
            shutil.rmtree(state, ignore_errors=True)
        answers, totals = row.pop("answers"), row.pop("totals")
        row["equal"] = answers == [w["answers"] for w in want] and totals == [
            w["totals"] for w in want
        ]
        row["joules"], row["later_joules"] = (
            round(board_joules(row[key]), 2) for key in ("cpu_s", "later_cpu_s")
        )
        rows.append(row)
    return rows


def board_joules(cpu_s: float, name: str = BOARD) -> float:
    """Joules above idle of so much CPU time of this machine on a board, at its boot clock.

    Simulated: times by the law of `edged.simulate.work`, watts by the board's power model.
    """
    board = load(name)
    model = power_model(name, "")
    assert model is not None
    hz = clocks_of(board, default_mode(board))["cpu"]
    tariff = ModelTariff(model)
    seconds = cpu_s * HOST_HZ * scale_of(board)[0] / hz
    return seconds * (tariff.race_watts("cpu", hz, 1.0) - tariff.idle_watts)


def cells_of(members: Sequence[str]) -> list[tuple[str, str]]:
    """All arms of `runs`; of another member always, seed and auto."""
    short = ("always", "seed", "auto")
    return [(m, a) for m in members for a in ARMS if m == "runs" or a in short]


def _in_a_process(arm: Arm) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "edged.platform.libraries",
        "edged.bench.query4",
        json.dumps(asdict(arm)),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise EdgedError(f"query 4, {arm.member}, {arm.arm}: {last[0]}")
    row: dict[str, Any] = json.loads(done.stdout)
    return row
