"""A run of mutated inputs against one door, with what it finds: errors, long pauses, memory.

Inputs come in blocks, each with a seed of its own, which is printed with a find: `python -m
tests.fuzz DOOR --seed SEED --count N` repeats it.  The door runs in a child process, so that a
crash is a find with a seed, too.
"""

from __future__ import annotations

import json
import os
import random
import resource
import time
import traceback
from dataclasses import asdict, dataclass, field

from tests.fuzz.doors import DOORS
from tests.fuzz.mutations import mutated

BLOCK = 1000
"""Inputs of one seed."""
PAUSE_S_MAX = 2.0
"""CPU time of one input: longer is a find."""
GROWTH_BYTES_MAX = 512 << 20
"""Growth of memory over a run: more is a find."""
FINDS_MAX = 20


@dataclass
class Outcome:
    """What a run did and found."""

    door: str
    inputs: int = 0
    cpu_s: float = 0.0
    pause_ms_max: float = 0.0
    growth_bytes: int = 0
    seed: int = 0
    """Of the last block."""
    finds: list[dict[str, str]] = field(default_factory=list)


def run(door: str, count: int, seed: int = 1, cpu_s: float = float("inf")) -> Outcome:
    """Feed `count` inputs, or as many as `cpu_s` allows, in this process."""
    opened, outcome = DOORS[door](), Outcome(door, seed=seed)
    tags = list(opened.corpora)
    for tag in tags:  # loads and compiles what the first inputs need
        for data in opened.corpora[tag]:
            opened.feed(tag, data)
    before, began = 0, time.process_time()
    for block in range(-(-count // BLOCK)):
        outcome.seed = seed + block
        _block(opened, tags, outcome, min(BLOCK, count - outcome.inputs))
        before = before or _memory()
        outcome.cpu_s = time.process_time() - began
        if len(outcome.finds) >= FINDS_MAX or outcome.cpu_s > cpu_s:
            break
    outcome.growth_bytes = _memory() - before
    if outcome.growth_bytes > GROWTH_BYTES_MAX:
        outcome.finds.append({"seed": str(seed), "what": f"grew by {outcome.growth_bytes} bytes"})
    return outcome


def run_in_child(door: str, count: int, seed: int, cpu_s: float) -> Outcome:
    """`run` in a forked child; its death is a find."""
    out, into = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.write(into, json.dumps(asdict(run(door, count, seed, cpu_s))).encode())
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as answer:
        document = answer.read()
    _, status = os.waitpid(pid, 0)
    if document:
        return Outcome(**json.loads(document))
    what = f"the process died with status {status}"
    return Outcome(door, seed=seed, finds=[{"seed": f"{seed} and later", "what": what}])


def _block(opened: object, tags: list[str], outcome: Outcome, count: int) -> None:
    rng = random.Random(f"{outcome.door} {outcome.seed}")
    for _ in range(count):
        tag = rng.choice(tags)
        data = mutated(rng, opened.corpora[tag])  # type: ignore[attr-defined]
        began = time.thread_time()
        try:
            opened.feed(tag, data)  # type: ignore[attr-defined]
        except Exception:
            _find(outcome, tag, data, traceback.format_exc())
        pause_s = time.thread_time() - began
        outcome.inputs += 1
        outcome.pause_ms_max = max(outcome.pause_ms_max, 1000 * pause_s)
        if pause_s > PAUSE_S_MAX:
            _find(outcome, tag, data, f"took {pause_s:.1f} s")


def _find(outcome: Outcome, tag: str, data: bytes, what: str) -> None:
    where = what.strip().rpartition("\n")[2]
    if all(where not in find["what"] for find in outcome.finds):
        find = {"seed": str(outcome.seed), "tag": tag, "input": data[:4096].hex(), "what": what}
        outcome.finds.append(find)


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
