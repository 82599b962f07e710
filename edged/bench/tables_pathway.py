"""Pathway as a peer of the incremental join: a process in an environment of the benchmark's own.

The environment holds PyPI's package at PATHWAY and is made at the first use.  Both tables, their
changes and the times of these are given to the engine before it starts, so that no Python runs for
a row.  The join is reduced to the number of pairs and to a sum that depends on which rows meet.
The CPU time is that of a run with the changes less that of a run without any.  Pathway keeps its
state in memory here, and nothing is durable.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from edged.bench.tables_data import Incremental, Row, TableBeat, TableChanges, Tick, together
from edged.errors import EdgedError

PATHWAY = "pathway==0.33.0"
_BEATS = 10
"""Beats that are measured: Pathway takes seconds for each hundred thousand changes."""
_MIX_U, _MIX_T = 1_000_003, 1_009

_RUN = """
import json, sys, time
import numpy as np, pandas as pd
import pathway as pw

found = np.load(sys.argv[1])
tables = []
for name in "ut":
    frame = pd.DataFrame({c: found[name + c] for c in ("k", "id", "v")})
    frame["__time__"], frame["__diff__"] = found[name + "time"], found[name + "weight"]
    tables.append(pw.debug.table_from_pandas(frame, id_from=["id", "v"]))
u, t = tables
pairs = u.join(t, pw.left.k == pw.right.k).select(
    mix=(pw.left.v % int(sys.argv[2])) * (pw.right.v % int(sys.argv[3])))
total = pairs.reduce(pairs=pw.reducers.count(), mixed=pw.reducers.sum(pw.this.mix))
last = {}

def on_change(key, row, time, is_addition):
    if is_addition:
        last.update(row)

pw.io.subscribe(total, on_change=on_change)
cpu, wall = time.process_time(), time.perf_counter()
pw.run(monitoring_level=pw.MonitoringLevel.NONE)
last["cpu_s"], last["wall_s"] = time.process_time() - cpu, time.perf_counter() - wall
print(json.dumps(last))
"""


def measure_pathway(size: Incremental, tick: Tick) -> Row:
    """The row of Pathway.  Raises EdgedError where the package cannot be installed or fails."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edged" / "pathway"
    python = cache / "bin" / "python"
    if not (cache / "ready").exists():
        tick(f"installing {PATHWAY} into {cache}")
        _call([sys.executable, "-m", "venv", str(cache)])
        _call([str(python), "-m", "pip", "install", "-q", PATHWAY, "pandas"])
        (cache / "ready").touch()
    tick("incremental join, pathway")
    beats = size.made[:_BEATS]
    without, _ = _run(python, size, [])
    answer, expected = _run(python, size, beats)
    changes = sum(beat.changes for beat in beats)
    cpu_s = max(1e-9, answer["cpu_s"] - without["cpu_s"])
    wall_s = max(0.0, answer["wall_s"] - without["wall_s"])
    return {
        "member": "pathway", "changes": changes, "pairs": answer["pairs"], "cpu_s": cpu_s,
        "wall_s": wall_s, "changes_per_cpu_s": changes / cpu_s, "beat_ms_max": None,
        "equal": [answer["pairs"], answer["mixed"]] == expected,
    }  # fmt: skip


def _run(
    python: Path, size: Incremental, beats: list[TableBeat]
) -> tuple[dict[str, Any], list[int]]:
    """What a process answers, and what the answer must be."""
    sides = (
        [size.u, *(beat.of_u for beat in beats)],
        [size.t, *(beat.of_t for beat in beats)],
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "changes.npz"
        np.savez(path, **_arrays(*sides))
        said = _call([str(python), "-c", _RUN, str(path), str(_MIX_U), str(_MIX_T)])
    return json.loads(said), _expected(*map(_sum, sides))


def _arrays(u: list[TableChanges], t: list[TableChanges]) -> dict[str, Any]:
    """Columns of both tables' changes, each with an even time of its own."""
    found = {}
    for name, parts in (("u", u), ("t", t)):
        for column in ("k", "id", "v", "weight"):
            found[name + column] = np.concatenate([getattr(part, column) for part in parts])
        found[f"{name}time"] = np.repeat(2 * np.arange(1, len(parts) + 1), [p.rows for p in parts])
    return found


def _sum(parts: list[TableChanges]) -> TableChanges:
    whole = parts[0]
    for part in parts[1:]:
        whole = together(whole, part)
    return whole


def _expected(u: TableChanges, t: TableChanges) -> list[int]:
    """Pairs, and the sum of their mix: per key the product of both sides' sums."""
    keys = 1 + int(max(u.k.max(), t.k.max()))
    answer = []
    for mix_u, mix_t in (
        (np.ones(u.rows, np.int64), np.ones(t.rows, np.int64)),
        (u.v % _MIX_U, t.v % _MIX_T),
    ):
        left, right = np.zeros(keys, np.int64), np.zeros(keys, np.int64)
        np.add.at(left, u.k, mix_u * u.weight)
        np.add.at(right, t.k, mix_t * t.weight)
        answer.append(int((left * right).sum()))
    return answer


def _call(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise EdgedError(f"pathway: {' '.join(last)}")
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
