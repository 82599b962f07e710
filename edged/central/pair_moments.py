"""Merging of moments of pairs (n, mean_x, mean_y, m2_x, m2_y, m2_xy), as Spark SQL.

For two parts a and b of one key, n = n_a + n_b, and for u and v each x or y:

    mean_u = mean_u_a + d_u * n_b / n          d_u = mean_u_b - mean_u_a
    m2_uv  = m2_uv_a + m2_uv_b + d_u * d_v * n_a * n_b / n

(Chan, Golub and LeVeque, 1979), applied to the parts in sorted order, so that a repetition gives
the same bits.  With weights a count may be 0 or negative.  A part of n = 0 holds the sums of x, y,
x², y² and xy instead, as windows on the device write them.
"""

from __future__ import annotations

from collections.abc import Sequence

MEANS = ("mean_x", "mean_y")
PRODUCTS = {"m2_x": (0, 0), "m2_y": (1, 1), "m2_xy": (0, 1)}
"""By field, the means whose deviations it multiplies."""
FIELDS = ("n", *MEANS, *PRODUCTS)


def aggregate(columns: Sequence[str], weighted: bool) -> str:
    """The aggregate over a key's rows, of quoted columns: a struct of FIELDS."""
    values = [f"coalesce(cast({columns[0]} as bigint), 0L)"]
    values += [f"coalesce(cast({c} as double), 0.0D)" for c in columns[1:]]
    parts = f"array_sort(collect_list({_struct(values)}))"
    start = _struct(["0L", *["0.0D"] * (len(FIELDS) - 1)])
    if weighted:
        return f"aggregate(reverse({parts}), {start}, (a, b) -> {_weighted()})"
    return f"aggregate(filter({parts}, part -> part.n > 0), {start}, (a, b) -> {_both()})"


def _struct(values: Sequence[str]) -> str:
    named = (f"'{name}', {value}" for name, value in zip(FIELDS, values, strict=True))
    return f"named_struct({', '.join(named)})"


def _both() -> str:
    """Parts whose counts, and their sum, are not 0."""
    apart = [f"(b.{m} - a.{m})" for m in MEANS]
    share, product = (
        "(cast(b.n as double) / (a.n + b.n))",
        "(cast(a.n as double) * b.n / (a.n + b.n))",
    )
    values = ["a.n + b.n"]
    values += [f"a.{m} + {d} * {share}" for m, d in zip(MEANS, apart, strict=True)]
    values += [
        f"a.{p} + b.{p} + {apart[u]} * {apart[v]} * {product}" for p, (u, v) in PRODUCTS.items()
    ]
    return _struct(values)


def _weighted() -> str:
    """Parts of any counts."""
    sums = [_total(m) for m in MEANS]
    sums += [
        " + ".join(
            f"{part}.{p} + {part}.n * {part}.{MEANS[u]} * {part}.{MEANS[v]}" for part in "ab"
        )
        for p, (u, v) in PRODUCTS.items()
    ]
    return (
        f"case when a.n + b.n = 0 then {_struct(['0L', *sums])}"
        f" when b.n = 0 then {_with_sums('a', 'b')}"
        f" when a.n = 0 then {_with_sums('b', 'a')}"
        f" else {_both()} end"
    )


def _total(mean: str) -> str:
    """The sum of both parts, from a mean or from a sum."""
    return " + ".join(f"if({part}.n = 0, {part}.{mean}, {part}.n * {part}.{mean})" for part in "ab")


def _with_sums(part: str, sums: str) -> str:
    """A part, and the sums of one whose count is 0."""
    values = [f"{part}.n"]
    values += [f"{part}.{m} + {sums}.{m} / {part}.n" for m in MEANS]
    for p, (u, v) in PRODUCTS.items():
        first, second = MEANS[u], MEANS[v]
        values.append(
            f"{part}.{p} + {sums}.{p} - {part}.{first} * {sums}.{second}"
            f" - {part}.{second} * {sums}.{first} - {sums}.{first} * {sums}.{second} / {part}.n"
        )
    return _struct(values)
