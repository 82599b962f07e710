"""What a configuration makes of the daemon: its settings and its jobs; and what is wrong with it
beyond the single value: the policy, the meters, files that are not there, job documents.
"""

from __future__ import annotations

import glob
import json
import os
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edged.config import Config, SettingError, read
from edged.energy.settings import NO_BOARD, SIMULATED, EnergySettings
from edged.errors import EdgedError, JobError
from edged.job.check import NICENESS, compile_expressions
from edged.job.document import load_document
from edged.job.plan import JobPlan, faults, parse_job
from edged.settings import Settings
from governors.cost import CostModel
from governors.errors import GovernorError
from governors.meters import settings as meters
from governors.policies.running import Running
from governors.tariff import Unpriced

_PATTERN = frozenset("*?[")


@dataclass(frozen=True)
class JobFile:
    """A job document that the configuration names."""

    path: Path
    document: dict[str, Any]


def settings(config: Config) -> Settings:
    """The daemon's settings.  Raises SettingError."""
    return Settings(
        directory=Path(config.store.directory),
        device=config.device.called,
        workers=config.run.workers or len(os.sched_getaffinity(0)),
        door=config.door,
        uplink_url=config.uplink.url or None,
        uplink_token=_token(config),
        uplink_ca=config.uplink.ca or None,
        store_bytes_max=config.store.bytes_max or None,
        snapshot_bytes=config.store.snapshot_bytes,
        trace=Path(config.run.trace) if config.run.trace else None,
        telemetry=config.telemetry,
        energy=energy(config),
    )


def board_of(config: Config) -> EnergySettings:
    """Which board is meant, with its helper; nothing else of the energy side."""
    side = config.energy
    return EnergySettings(side.board or "/", helper=Path(side.helper))


def energy(config: Config) -> EnergySettings:
    """The energy side's settings.  Raises SettingError."""
    side, board = config.energy, board_of(config).board
    if board != NO_BOARD and not board.startswith(SIMULATED) and not Path(board).is_dir():
        raise _wrong(config, "energy.board", f"{board} is no directory",
                     f"name a board's tree, {SIMULATED}NAME, or {NO_BOARD}")  # fmt: skip
    try:
        found = meters.parse(side.meters)
    except GovernorError as problem:
        raise _wrong(config, "energy.meters", str(problem)) from problem
    try:
        # a model's figures are not looked at before the board is
        Running(side.policy, side.settings, CostModel(Unpriced()))
    except GovernorError as problem:
        key = "energy.settings" if "setting" in str(problem) else "energy.policy"
        raise _wrong(config, key, str(problem)) from problem
    return EnergySettings(board, side.policy, side.settings, side.allow, found, Path(side.helper))


def job_files(config: Config) -> list[JobFile]:
    """The job documents that `run.jobs` names, read but not judged.  Raises SettingError for a
    file that is not there, JobError for one that does not parse."""
    return [JobFile(path, load_document(path)) for path in _paths(config)]


def plans(found: list[JobFile]) -> list[JobPlan]:
    """Their plans.  Raises JobError that names the file."""
    made = []
    for file in found:
        try:
            made.append(parse_job(file.document))
        except JobError as fault:
            raise _of(file.path, fault) from fault
    return made


def problems(config: Config) -> list[EdgedError]:
    """Everything that is wrong with the daemon's part and the jobs; nothing is opened or changed
    but that expressions are compiled into the cache."""
    wrong: list[EdgedError] = []
    try:
        settings(config)
    except SettingError as problem:
        wrong.append(problem)
    try:
        paths = _paths(config)
    except SettingError as problem:
        return [*wrong, problem]
    names: dict[str, Path] = {}
    for path in paths:
        try:
            document = load_document(path)
        except JobError as problem:
            wrong.append(problem)
            continue
        wrong += [_of(path, fault) for fault in faults(document)]
        name = str(document.get("name"))
        if names.setdefault(name, path) != path:
            wrong.append(JobError(f"{path}: name", f"{names[name]} has a job {name} too"))
    return wrong


def _paths(config: Config) -> list[Path]:
    found: dict[Path, None] = {}
    for named in config.run.jobs:
        if _PATTERN & set(named):
            found.update((Path(path), None) for path in sorted(glob.glob(named)))  # noqa: PTH207
        elif not Path(named).is_file():
            raise _wrong(config, "run.jobs", f"{named} is no file", "name job documents")
        else:
            found[Path(named)] = None
    return list(found)


def _token(config: Config) -> str:
    file = config.uplink.token_file
    if not file:
        return ""
    try:
        return Path(file).read_text().strip()
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise _wrong(config, "uplink.token_file", f"{file} cannot be read: {reason}") from problem


def _of(path: Path, fault: JobError) -> JobError:
    """The fault with the file that it is in."""
    return JobError(f"{path}: {fault.path}", fault.problem, fault.advice)


def _wrong(config: Config, key: str, problem: str, advice: str = "") -> SettingError:
    return SettingError(key, config.origin(key), problem, advice)


@dataclass(frozen=True)
class Verdict:
    """What the child process says of a configuration that is read anew."""

    config: Config
    jobs: list[JobFile]
    faults: list[str]
    """If there are any, nothing else counts."""


def judge(path: str | None, flags: Mapping[str, tuple[str, Any]]) -> Verdict:
    """Read everything anew, find all that is wrong, and compile the jobs' expressions."""
    config, wrong = read(path, flags=flags)
    found: list[EdgedError] = [*wrong] or problems(config)
    if found:
        return Verdict(config, [], [str(problem) for problem in found])
    files = job_files(config)
    try:
        for plan in plans(files):
            compile_expressions(plan, lambda *_: None)
    except EdgedError as problem:
        return Verdict(config, [], [str(problem)])
    return Verdict(config, files, [])


def main() -> None:
    """`python -m edged.configured`: the question as JSON on standard input, the verdict pickled on
    standard output."""
    question = json.load(sys.stdin)
    os.nice(NICENESS)
    verdict = judge(question["path"], question["flags"])
    sys.stdout.buffer.write(pickle.dumps(verdict))


if __name__ == "__main__":
    # the class is to be found under the module's name by who reads it
    from edged import configured

    configured.main()
