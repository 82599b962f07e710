"""From a configuration to the daemon's settings and jobs, and the checks beyond single values.

Checked are the board, the meters, the policy, files that are missing, job documents, and whether
the jobs can run together.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from edged.beat.recover import FaultyFile
from edged.config import Config, SettingError
from edged.daemon.settings import DaemonSettings
from edged.documents.reader import load_document
from edged.energy.settings import NO_BOARD, EnergySettings
from edged.energy.sleeps import GPU_PM, OFFLINE, UCLAMP, parse_allowed
from edged.errors import ConfigError, EdgedError, JobError
from edged.job.coexistence import (
    check_coexistence,
    check_hearing,
    check_listeners,
    check_store_size,
)
from edged.job.confinement import Confinement, is_confined
from edged.job.plan import JobPlan, faults, parse_job
from edged.platform.cpus import confine, parse_cpus, worker_count
from governors.actuators.base import discover
from governors.board_names import BoardNameError, parse_board
from governors.board_tariffs import Unpriced
from governors.cost import CostModel
from governors.detect import detect
from governors.errors import GovernorError
from governors.meters import settings as meters
from governors.policies.base import load_all as load_policies
from governors.policies.base import unknown_settings
from governors.policies.running import Running
from governors.profile_reader import load as load_profile
from governors.simulated.board import from_name
from governors.simulated.kernel import open_root
from governors.suggestions import did_you_mean
from governors.sysfs import Sysfs

_PATTERN = frozenset("*?[")
SWITCHES = (OFFLINE, GPU_PM, UCLAMP)
"""Entries of `energy.allow` other than the names of clocks."""
FILES_READ = ("uplink.token_file", "uplink.ca")
FILES_NAMED = ("api.tls_cert", "api.tls_key", "api.client_ca")
"""Files that the daemon reads, and files that only the API must be able to read."""


@dataclass(frozen=True)
class JobFile:
    """A job document that the configuration names."""

    path: Path
    document: dict[str, Any]


def settings(config: Config) -> DaemonSettings:
    """The daemon's settings.  Raises SettingError."""
    return DaemonSettings(
        directory=Path(config.store.directory),
        device=config.device.effective_name,
        workers=config.run.workers or worker_count(),
        door=config.door,
        uplink_url=config.uplink.url or None,
        uplink_token=_token(config),
        uplink_ca=config.uplink.ca or None,
        store_bytes_max=config.store.bytes_max or None,
        snapshot_bytes=config.store.snapshot_bytes,
        files=Path(config.run.files).absolute(),
        confinement=confinement(config),
        trace=Path(config.run.trace) if config.run.trace else None,
        telemetry=config.telemetry,
        energy=energy(config),
    )


def confine_cpus(config: Config) -> None:
    """Run this process, and all that it starts, on the CPUs of `run.cpus`.  Raises SettingError."""
    try:
        confine(config.run.cpus)
    except (ValueError, OSError) as problem:
        raise _wrong(config, "run.cpus", str(problem), "name CPUs of this machine") from problem


def confinement(config: Config) -> Confinement:
    """The bounds of job documents that come over the control door."""
    run = config.run
    roots = [Path(config.store.directory) / "files", *map(Path, run.remote_files)]
    roots += [Path(run.files)] if run.files else []
    files = Path(run.files).absolute()
    return Confinement(tuple(roots), run.remote_listen, run.remote_connect, files)


def board_of(config: Config) -> EnergySettings:
    """The board and its helper only, of the energy side's settings."""
    side = config.energy
    return EnergySettings(side.board or "/", helper=Path(side.helper))


def energy(config: Config) -> EnergySettings:
    """The energy side's settings.  Raises SettingError for the first fault."""
    for wrong in energy_faults(config):
        raise wrong
    side, board = config.energy, board_of(config).board
    found = meters.parse(side.meters)
    return EnergySettings(
        board, side.policy, side.settings, side.allow, found, Path(side.helper),
        side.gpu_share, side.suspend, side.suspend_watts, side.power_model,
        side.max_celsius or None,
    )  # fmt: skip


def energy_faults(config: Config) -> Iterator[SettingError]:
    """All faults of the energy side that this machine can find."""
    side = config.energy
    yield from _board_faults(config)
    try:
        meters.parse(side.meters)
    except GovernorError as problem:
        yield _wrong(config, "energy.meters", str(problem))
    policy = load_policies().get(side.policy)
    if policy is None:
        advice = did_you_mean(side.policy, load_policies())
        yield _wrong(config, "energy.policy", f"there is no policy {side.policy!r}", advice)
        return
    unknown = unknown_settings(policy, side.settings)
    for key, advice in unknown.items():
        yield _wrong(config, "energy.settings", f"{side.policy} has no setting {key}", advice)
    if unknown:
        return
    try:
        # costs come from the board, which is not opened here
        Running(side.policy, side.settings, CostModel(Unpriced()))
    except GovernorError as problem:
        yield _wrong(config, "energy.settings", str(problem))


def _board_faults(config: Config) -> Iterator[SettingError]:
    try:
        parse_board(board_of(config).board)
    except BoardNameError as problem:
        yield _wrong(config, "energy.board", problem.problem, problem.advice)
    yield from _power_model_faults(config)


def _power_model_faults(config: Config) -> Iterator[SettingError]:
    name, board = config.energy.power_model, board_of(config)
    if not name:
        return
    if board.simulated:
        yield _wrong(config, "energy.power_model", f"{board.board} has its own power model",
                     "leave it out, or simulate that board")  # fmt: skip
        return
    try:
        load_profile(name)
    except GovernorError as problem:
        yield _wrong(config, "energy.power_model", str(problem))


def _cpus_faults(config: Config) -> Iterator[SettingError]:
    try:
        parse_cpus(config.run.cpus or "0")
    except ValueError as problem:
        yield _wrong(config, "run.cpus", str(problem))


def _allow_faults(config: Config) -> Iterator[SettingError]:
    """Entries of `energy.allow` that the board does not have.  `_board_faults` reports a missing
    board."""
    board, allowed = board_of(config), set[str]()
    for word in config.energy.allow:
        try:
            allowed.update(parse_allowed([word]))
        except ConfigError as problem:
            yield _wrong(config, "energy.allow", str(problem).removeprefix("allow: "))
    unknown = sorted(allowed - set(SWITCHES))
    if not unknown or board.board == NO_BOARD:
        return
    try:
        available = [*_clocks(board), *SWITCHES]
    except (GovernorError, OSError):
        return
    for word in unknown:
        if word not in available:
            advice = did_you_mean(word, available)
            yield _wrong(config, "energy.allow", f"there is no {word} here", advice)


def _clocks(board: EnergySettings) -> list[str]:
    """The board's clocks that need an entry in `allow`.  Raises GovernorError and OSError."""
    with ExitStack() as opened:
        if board.simulated:
            place = opened.enter_context(TemporaryDirectory(prefix="edged-"))
            sysfs: Sysfs = from_name(board.board, Path(place)).sysfs
        else:
            sysfs = open_root(Path(board.board))
        return sorted(knob.name for knob in discover(sysfs, detect(sysfs)) if knob.optional)


def job_files(config: Config) -> list[JobFile]:
    """The job documents that `run.jobs` names, read but not checked.

    Raises SettingError for a missing file, JobError for one that does not parse, or that belongs to
    another user and names something out of bounds (`edged.job.confinement`).
    """
    found = [JobFile(path, load_document(path)) for path in _paths(config)]
    for file in found:
        if is_confined(file.path):
            try:
                confinement(config).check(parse_job(file.document))
            except JobError as fault:
                raise _of(file.path, fault) from fault
    return found


def plans(found: list[JobFile]) -> list[JobPlan]:
    """The plans of job files.  Raises JobError that names the file."""
    made = []
    for file in found:
        try:
            made.append(parse_job(file.document))
        except JobError as fault:
            raise _of(file.path, fault) from fault
    return made


def plans_and_faults(found: list[JobFile], store: Path) -> tuple[list[JobPlan], list[FaultyFile]]:
    """The plans of job files, and the files that cannot be planned: the store may hold their jobs
    with state.  Raises JobError for such a file where there is no store yet."""
    made: list[JobPlan] = []
    faulty: list[FaultyFile] = []
    for file in found:
        try:
            made += plans([file])
        except JobError as fault:
            if not store.exists():
                raise
            faulty.append(FaultyFile(file.document, fault))
    return made, faulty


def problems(config: Config) -> list[EdgedError]:
    """All faults of the daemon's sections and the jobs.

    Opens and changes nothing, except that expressions are compiled into the cache.
    """
    wrong: list[EdgedError] = [
        *_cpus_faults(config), *energy_faults(config), *_allow_faults(config), *_file_faults(config)
    ]  # fmt: skip
    try:
        paths = _paths(config)
    except SettingError as problem:
        return [*wrong, problem]
    names: dict[str, Path] = {}
    made: list[JobPlan] = []
    for path in paths:
        try:
            document = load_document(path)
        except JobError as problem:
            wrong.append(problem)
            continue
        found = [_of(path, fault) for fault in faults(document)]
        made += [] if found else [parse_job(document)]
        wrong += found
        name = str(document.get("name"))
        if names.setdefault(name, path) != path:
            wrong.append(JobError(f"{path}: name", f"{names[name]} has a job {name} too"))
    return wrong or _coexistence_faults(config, made)


def _coexistence_faults(config: Config, found: Sequence[JobPlan]) -> list[EdgedError]:
    """Why jobs that are valid by themselves cannot run together."""
    try:
        check_coexistence(found)
        check_listeners(found)
        check_store_size(config.store.bytes_max or None, found)
        check_hearing(found, config.energy.suspend)
    except EdgedError as problem:
        return [problem]
    return []


def _file_faults(config: Config) -> Iterator[SettingError]:
    """Files that a setting names and that are missing or cannot be read."""
    for key in (*FILES_READ, *FILES_NAMED):
        file = config.get(key)
        try:
            if file and key in FILES_READ:
                Path(file).read_bytes()
            elif file:
                Path(file).stat()
        except OSError as problem:
            if key in FILES_READ or not isinstance(problem, PermissionError):
                yield _wrong(config, key, f"{file} cannot be read: {problem.strerror}")


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
    """The fault, with the name of its file."""
    return JobError(f"{path}: {fault.path}", fault.problem, fault.advice)


def _wrong(config: Config, key: str, problem: str, advice: str = "") -> SettingError:
    return SettingError(key, config.origin(key), problem, advice)


@dataclass(frozen=True)
class ConfigVerdict:
    """The answer of a reload's child process."""

    config: Config
    jobs: list[JobFile]
    faults: list[str]
    """Where there are faults, the other fields are not used."""
