"""The desired state of a device: the document in which the centre configures it, and its
application.

At the centre: `LANDING/desired/<device>.json`; on the device: `STORE/desired.received.json`:

    {"version": 7, "document": {
        "jobs": [{…a job document…}, …],
        "policy": {"name": "power_cap", "settings": {"watts": 5.0}},
        "windows": [{"from": "22:00", "until": "06:00"}]}}

- `jobs`: all jobs of the centre.  A job of the previous version that is no longer listed is drained
  and deleted.  Jobs of files and of the API are never changed; a job with the same name is refused.
- `policy`: as in `edged governor policy`.  `windows`: when pages may be sent, UTC; [] is always.
- A missing key leaves its part unchanged; a null document leaves everything unchanged.

`python -m edged.centre_link.desired_state STORE DOOR` is a child process of the daemon
(`edged.centre_link.follower`).  It checks everything that can be checked before it changes
anything, then sends ordinary commands to the control door.  If one fails, the previous ones are
undone.  It writes `STORE/desired.json` and prints it:

    {"version", "applied", "problem", "windows", "policy", "done": [text]}

`applied` is the last version that was applied.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from edged.errors import CommandError, EdgedError, JobError

RECEIVED, RESULT = "desired.received.json", "desired.json"
BYTES_MAX = 1 << 20
JOBS_MAX = 64
WINDOWS_MAX = 16
BUSY_S_MAX = 60.0
"""How long a command is repeated while the daemon answers that it is busy."""
_RESTORE = {"paused": "job.pause", "draining": "job.drain", "drained": "job.drain"}
"""The command that restores a job's state."""
_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")

SendCommand = Callable[..., Any]


@dataclass(frozen=True)
class DesiredState:
    """A checked document; None: the key is missing."""

    jobs: tuple[dict[str, Any], ...] | None
    policy: dict[str, Any] | None
    windows: list[list[int]] | None


def read(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def parse(document: Any) -> DesiredState:
    """Check a document's shape.  Raises JobError; the jobs in it are not checked."""
    if document is None:
        return DesiredState(None, None, None)
    if not isinstance(document, Mapping):
        raise JobError("document", "is not a table", "with jobs, policy, windows")
    if unknown := sorted(set(document) - {"jobs", "policy", "windows"}):
        raise JobError(unknown[0], "unknown key", "known: jobs, policy, windows")
    jobs = _list(document, "jobs", JOBS_MAX)
    names = [job.get("name") for job in jobs or ()]
    for i, name in enumerate(names):
        if names.index(name) != i:
            raise JobError(f"jobs[{i}].name", f"{name!r} is listed twice")
    windows = _list(document, "windows", WINDOWS_MAX)
    return DesiredState(
        None if jobs is None else tuple(jobs),
        _policy(document.get("policy")),
        None if windows is None else [_window(i, w) for i, w in enumerate(windows)],
    )


def _list(document: Mapping[str, Any], key: str, most: int) -> list[dict[str, Any]] | None:
    found = document.get(key)
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise JobError(key, "is not a list of tables")
    if len(found) > most:
        raise JobError(key, f"has {len(found)} entries", f"at most {most}")
    return found


def _policy(policy: Any) -> dict[str, Any] | None:
    if policy is None:
        return None
    settings = policy.get("settings", {}) if isinstance(policy, dict) else None
    if not isinstance(settings, dict) or not isinstance(policy.get("name"), str):
        raise JobError("policy", "is not a table with name and settings")
    if set(policy) - {"name", "settings"}:
        raise JobError("policy", "has unknown keys")
    return {"name": policy["name"], "settings": settings}


def _window(i: int, window: Mapping[str, Any]) -> list[int]:
    path = f"windows[{i}]"
    if set(window) != {"from", "until"}:
        raise JobError(path, "needs from and until", "as 22:00, UTC")
    found = [_TIME.fullmatch(str(window[key])) for key in ("from", "until")]
    if None in found:
        raise JobError(path, "has an invalid time", "as 22:00, UTC")
    return [3600 * int(m[1]) + 60 * int(m[2]) for m in found if m is not None]


def check_jobs(jobs: Sequence[Mapping[str, Any]]) -> None:
    """Raise JobError for the first fault in a job document."""
    from edged.job.plan import faults

    for i, document in enumerate(jobs):
        try:
            wrong = faults(document)
        except RecursionError:
            wrong = [JobError("document", "is nested too deeply")]
        if wrong:
            name = document.get("name", i)
            raise JobError(f"jobs.{name}.{wrong[0].path}", wrong[0].problem, wrong[0].advice)


class Applier:
    """Checks a desired state against the running daemon, and applies it."""

    def __init__(self, send: SendCommand) -> None:
        self._send = send
        self._status = send("status")
        self._running = {job["name"]: job for job in send("jobs")["jobs"]}
        self._undo: list[Callable[[], Any]] = []
        self.done: list[str] = []
        """The changes made, as text."""

    def check(self, desired: DesiredState) -> None:
        """Raise EdgedError for everything that can be known to fail.  Changes nothing, except that
        compiled expressions are cached."""
        if desired.jobs is not None:
            self._check_jobs(desired.jobs)
        if desired.policy is not None:
            self._check_policy(desired.policy)

    def apply(self, desired: DesiredState) -> None:
        """Send the commands.  Raises EdgedError after undoing those that had succeeded."""
        try:
            self._apply(desired)
        except EdgedError:
            for undo in reversed(self._undo):
                with contextlib.suppress(EdgedError):
                    undo()
            self.done = []
            raise

    def _check_jobs(self, jobs: Sequence[dict[str, Any]]) -> None:
        from edged.job.check import compile_expressions
        from edged.job.coexistence import check_coexistence, check_listeners, check_store_size
        from edged.job.plan import parse_job
        from edged.job.state_carryover import compare

        check_jobs(jobs)
        names = {job["name"] for job in jobs}
        plans = [parse_job(job) for job in jobs]
        others = []
        for name, job in self._running.items():
            if job["origin"] == "centre":
                continue
            if name in names:
                made = job["origin"].partition(":")[0] or "api"
                raise JobError(
                    f"jobs.{name}", f"this device already has a job {name} (origin: {made})"
                )
            if job["state"] != "shelved":  # the daemon itself protects what a shelved job needs
                others.append(parse_job(job["document"]))
        check_coexistence([*others, *plans])
        check_listeners([*others, *plans])
        bytes_max = self._status["store"]["bytes_max"]
        check_store_size(bytes_max, [*others, *plans])
        for plan in plans:
            if (old := self._running.get(plan.name)) is not None:
                compare(parse_job(old["document"]), plan).check()
            compile_expressions(plan, lambda *_: None)

    def _check_policy(self, policy: Mapping[str, Any]) -> None:
        from governors.board_tariffs import Unpriced
        from governors.cost import CostModel
        from governors.errors import GovernorError
        from governors.policies.running import Running

        if self._status["energy"] is None:
            raise JobError("policy", "this device watches no board")
        try:
            Running(policy["name"], policy["settings"], CostModel(Unpriced()))
        except GovernorError as problem:
            raise JobError("policy", str(problem)) from problem

    def _apply(self, desired: DesiredState) -> None:
        if desired.policy is not None:
            self._switch(desired.policy)
        for job in desired.jobs or ():
            self._put(job)
        if desired.jobs is not None:
            names = {job["name"] for job in desired.jobs}
            self._delete([
                job for name, job in self._running.items()
                if job["origin"] == "centre" and name not in names
            ])  # fmt: skip

    def _delete(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        """Drain and delete jobs.  All drain before the first is deleted: a drain can be undone, but
        a deleted job comes back without its state."""
        for job in jobs:
            self._command("job.drain", name=job["name"])
            self._undo.append(partial(self._restore, job))
        for job in jobs:
            self._command("job.delete", name=job["name"], drain=True)
            self.done.append(f"job {job['name']} is drained and deleted")

    def _switch(self, policy: Mapping[str, Any]) -> None:
        runs = self._send("governor")
        was = {key: runs["own"][key] for key in ("policy", "settings")}
        target = {"policy": policy["name"], "settings": policy["settings"]}
        if was == target and not runs["problem"]:
            return
        self._command("governor", **target, origin="centre")
        origin = runs["own"]["origin"]
        chosen = origin in ("command", "centre")
        before = {**was, "origin": origin} if chosen else {"policy": "none"}
        self._undo.append(lambda: self._command("governor", **before))
        self.done.append(f"policy {policy['name']}")

    def _put(self, document: dict[str, Any]) -> None:
        from edged.job.plan import parse_job

        name, old = document["name"], self._running.get(document["name"])
        if old is not None and old["document"] == parse_job(document).document:
            if old["state"] in ("running", "paused", "failed"):
                return
            self._command("job.resume", name=name)
            self._undo.append(partial(self._command, "job.drain", name=name))
            self.done.append(f"job {name} resumed")
            return
        self._command("job.put", document=document, origin="centre")
        if old is None:
            self._undo.append(lambda: self._command("job.delete", name=name))
        else:
            before = old["document"]
            self._undo.append(lambda: self._command("job.put", document=before, origin="centre"))
        self.done.append(f"job {name} {'created' if old is None else 'replaced'}")

    def _restore(self, job: Mapping[str, Any]) -> None:
        """Undo a drain; a job already deleted is created again, without its state."""
        name = job["name"]
        try:
            self._command(_RESTORE.get(job["state"], "job.resume"), name=name)
        except CommandError as problem:
            if problem.kind != "missing":
                raise
            self._command("job.put", document=job["document"], origin="centre")

    def _command(self, cmd: str, **arguments: Any) -> Any:
        until = time.monotonic() + BUSY_S_MAX
        while True:
            try:
                return self._send(cmd, **arguments)
            except CommandError as problem:
                wait_s = problem.retry_s or 1.0
                if problem.kind != "busy" or time.monotonic() + wait_s > until:
                    raise
            time.sleep(wait_s)


def follow(directory: Path, send: SendCommand) -> dict[str, Any]:
    """Check and apply the received document; returns the result.  Raises CommandError if no daemon
    answers: nothing was decided then."""
    received, before = read(directory / RECEIVED), read(directory / RESULT)
    result = {
        "version": int(received.get("version", 0)), "applied": before.get("applied", 0),
        "problem": "", "windows": before.get("windows", []), "policy": before.get("policy"),
        "done": [],
    }  # fmt: skip
    try:
        if "document" not in received:
            raise JobError(RECEIVED, "could not be read", "is the disk full?")
        applier, desired = Applier(send), parse(received["document"])
        applier.check(desired)
        applier.apply(desired)
    except EdgedError as problem:
        if isinstance(problem, CommandError) and problem.kind == "unreachable":
            raise
        return result | {"problem": str(problem)}
    if desired.windows is not None:
        result["windows"] = desired.windows
        applier.done.append(f"{len(desired.windows)} upload windows")
    result["policy"] = desired.policy or result["policy"]
    return result | {"applied": result["version"], "done": applier.done}


def main(store: str, door: str) -> None:
    """Apply once; see the module's docstring."""
    from edged.control.door import ask

    os.nice(10)
    directory = Path(store)
    try:
        result = follow(directory, lambda cmd, **more: ask(door, cmd, **more))
    except CommandError as problem:
        sys.exit(str(problem))
    fresh = directory / f"{RESULT}.new"
    with fresh.open("w", encoding="utf-8") as file:
        json.dump(result, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(directory / RESULT)
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
