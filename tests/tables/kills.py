"""Kills and power cuts of a table state: `python -m tests.tables.kills [--kills N] [--seed N]`.

A child applies beats that follow from the seed or loads them as a population, probes, merges in
slices, and makes a snapshot every few beats.  It is killed with SIGKILL at random moments.  After
each kill the last snapshot is loaded: it must have exactly the rows of its beats, and its successor
goes on from there.
"""

from __future__ import annotations

import argparse
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import numpy as np

from edged.bench.tables_data import members
from edged.platform.disk import SystemDisk
from edged.tables.base import TABLES, LoadingState, TableContext
from tests.naive.tables import Twin
from tests.store.simdisk import PowerCut, SimDisk
from tests.tables import support
from tests.tables.test_members import ORDINARY, changes_of

ROWS, KEYS, BEATS_A_SNAPSHOT = 300, 200, 4
PROBED = support.batch(support.key_schema(ORDINARY, ("k",)), [(k,) for k in range(KEYS)])


def changes(seed, beat):
    """The changes of a beat."""
    return changes_of(np.random.default_rng([seed, beat]), ROWS, KEYS)


def opened(member, folder, disk, saved=None):
    """A state with small limits, loaded from a snapshot; what nothing names is deleted."""
    context = TableContext(disk, folder, support.workers(1), 6_000, "auto")
    state = TABLES.load()[member](ORDINARY, ("k",), context)
    if saved is not None:
        state.load(saved)
    state.keep([] if saved is None else [saved])
    return state


def loaded(state, rows, weights):
    """A beat of a population: the run's file is durable before it counts."""
    state.load_run(rows, weights, whole=False)
    disk, directory = state.context.disk, state.context.directory
    for named in state.loading():
        file = disk.open(f"{directory}/{named['name']}")
        file.sync()
        file.close()
    disk.sync_directory(directory)
    state.end_load()


def one_beat(state, seed, beat):
    """Changes, of which some are loaded as in a population, a probe and a slice of a merge."""
    rows, weights = changes(seed, beat)
    if isinstance(state, LoadingState) and beat % 3 == 0:
        loaded(state, rows, weights)
    else:
        state.apply(rows, weights)
    for _ in range(6):
        state.probe(PROBED)
    state.work(500)


def expected(seed, beats):
    """What a probe finds after so many beats."""
    twin = Twin(ORDINARY, ("k",))
    for beat in range(beats):
        rows, weights = changes(seed, beat)
        twin.apply(support.python_rows(rows), weights.tolist())
    return twin.probe([(k,) for k in range(KEYS)])


def snapshot_at(folder):
    """(beats, state) of the last snapshot; (0, None) before the first."""
    path = Path(folder) / "snapshot"
    return pickle.loads(path.read_bytes()) if path.exists() else (0, None)


def live(member, folder, seed):
    """The child: beats and snapshots for ever."""
    beat, saved = snapshot_at(folder)
    state = opened(member, f"{folder}/state", SystemDisk(), saved)
    while True:
        one_beat(state, seed, beat)
        beat += 1
        if beat % BEATS_A_SNAPSHOT == 0:
            saved = state.save()
            state.sync()
            (Path(folder) / "new").write_bytes(pickle.dumps((beat, saved)))
            (Path(folder) / "new").replace(f"{folder}/snapshot")
            state.keep([saved])


def kills(member, count, seed):
    """Kill a child `count` times; returns the beats that were reached."""
    rng, reached = random.Random(seed), 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            command = [sys.executable, "-m", "tests.tables.kills", "--live", member, folder]
            child = subprocess.Popen([*command, "--seed", str(seed)])
            until = time.monotonic() + 120
            while snapshot_at(folder)[0] <= reached and time.monotonic() < until:
                time.sleep(0.01)
                assert child.poll() is None, "the child has ended by itself"
            time.sleep(rng.uniform(0, 0.2))
            child.send_signal(signal.SIGKILL)
            child.wait()
            beats, saved = snapshot_at(folder)
            assert beats > reached, f"kill {number}: no progress"
            reached = beats
            state = opened(member, f"{folder}/state", SystemDisk(), saved)
            assert support.matches(state, PROBED) == expected(seed, beats), f"kill {number}"
            state.close()
    return reached


def power_cuts(count, seed):
    """Cut the power of a simulated disk at random operations; returns the number of cuts."""
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        disk = SimDisk()
        disk.cut_at = rng.randint(5, 150)
        saved, beats = None, 0
        state = opened("runs", "/t", disk)
        try:
            for beat in range(1_000):
                one_beat(state, seed, beat)
                if (beat + 1) % BEATS_A_SNAPSHOT == 0:
                    made = state.save()
                    state.sync()
                    saved, beats = made, beat + 1
                    state.keep([saved])
        except PowerCut:
            pass
        disk = disk.after_power_cut(rng)
        disk.mkdir("/t")
        state = opened("runs", "/t", disk, saved)
        assert support.matches(state, PROBED) == expected(seed, beats), f"cut {number}"
    return count


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--live", nargs=2)
    args = parser.parse_args()
    if args.live:
        live(*args.live, args.seed)
    click.echo(f"seed {args.seed}")
    click.echo(f"{power_cuts(args.cuts, args.seed)} power cuts: nothing lost")
    for member in members():
        beats = kills(member, args.kills, args.seed)
        click.echo(f"{member}: {args.kills} kills, {beats} beats: nothing lost")


if __name__ == "__main__":
    main()
