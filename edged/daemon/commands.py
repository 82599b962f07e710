"""The commands that come through the door: checked, carried out between beats, answered.

Every command is a method that takes the request and returns the answer, or `Later` where it waits
for a commit or for work on another thread.  Nothing here trusts a request's values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from edged.beat.changes import Posted
from edged.beat.jobs import Meant, describe
from edged.beat.runtime import JobRuntime
from edged.control.door import Later
from edged.daemon.reload import Reloader
from edged.daemon.status import picture
from edged.energy import status
from edged.energy.policies import COMMAND, PolicyChoice
from edged.energy.runtime import EnergyGovernor
from edged.errors import CommandError, EdgedError
from edged.events.log import EVENTS_MAX, LEVELS
from edged.job.changes import API, CENTRE, DRAINING, FILE, PAUSED, RUNNING, Change
from edged.job.plan import parse_job
from edged.placement.placement import AUTO

if TYPE_CHECKING:
    from edged.daemon.daemon import Daemon

Request = dict[str, Any]
NONE = "none"
"""Instead of a policy's name: none that a command chose."""


class Control:
    """Carries out commands on a daemon; the heart's thread only."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._commands: dict[str, Callable[[Request], Any]] = {
            "status": self._status,
            "events": self._page,
            "stop": self._stop,
            "config": lambda _: {"values": self._reloader().values()},
            "reload": lambda _: self._reloader().begin(),
            "jobs": lambda _: {"jobs": [describe(job) for job in daemon.heart.jobs]},
            "job": lambda request: describe(self._job(request)),
            "job.put": self._put,
            "job.pause": lambda request: self._state(request, PAUSED),
            "job.resume": lambda request: self._state(request, RUNNING),
            "job.drain": lambda request: self._state(request, DRAINING),
            "job.delete": self._delete,
            "replace": self._replace,
            "kernel": self._pin,
            "governor": self._steer,
            "energy": lambda _: status.energy(self._side(), daemon.clock.monotonic_us()),
            "uplink.retry": self._retry,
            "log": self._log,
        }

    def __call__(self, request: Request) -> Any:
        """The answer.  Raises EdgedError, which the door tells."""
        cmd = str(request.get("cmd"))
        if cmd not in self._commands:
            known = ", ".join(sorted([*self._commands, "watch"]))
            raise CommandError("unsupported", f"unknown command {cmd!r}; there are {known}")
        return self._commands[cmd](request)

    def _status(self, _: Request) -> Later:
        later = Later()
        self._daemon.after_acks(lambda: later.done(picture(self._daemon)))
        return later

    def _page(self, request: Request) -> Any:
        last = integer(request, "since", 0, 0, 2**63 - 1)
        return self._daemon.events.page(last, integer(request, "limit", 100, 1, EVENTS_MAX))

    def _stop(self, request: Request) -> Any:
        drain = request.get("drain", False)
        if not isinstance(drain, bool):
            raise CommandError("invalid", f"{drain!r} is not true or false", where="drain")
        within_s = integer(request, "within_s", 60, 1, 86_400)
        self._daemon.stop(within_s * 1_000_000 if drain else 0)
        return {"stopping": True}

    def _retry(self, _: Request) -> Any:
        if self._daemon.uplink is None:
            raise CommandError("conflict", "there is no uplink", do="start the daemon with one")
        self._daemon.retry_uplink()
        return {"retrying": True}

    def _log(self, request: Request) -> Any:
        log, level = self._daemon.events.log, request.get("level", "")
        was = log.level
        if level:
            if level not in LEVELS:
                choice = f"one of {', '.join(LEVELS)}"
                raise CommandError("invalid", f"{level!r} is no level", where="level", do=choice)
            log.level = level
        return {"level": log.level, "was": was}

    def _reloader(self) -> Reloader:
        if self._daemon.reloader is None:
            raise CommandError("unsupported", "there is no configuration to read")
        return self._daemon.reloader

    # jobs --------------------------------------------------------------------------------------

    def _job(self, request: Request) -> JobRuntime:
        name = text(request, "name")
        job = self._daemon.recovered.book.get(name)
        if job is None:
            raise CommandError("missing", f"no job {name} is running", where="name")
        return job

    def _put(self, request: Request) -> Any:
        """A new job, or another document for one that there is."""
        document, origin = request.get("document"), request.get("origin", API)
        if origin not in (API, CENTRE):
            raise CommandError("invalid", f"{origin!r} is not {API} or {CENTRE}", where="origin")
        if isinstance(document, dict):
            old = self._daemon.recovered.book.get(str(document.get("name")))
            if old is not None and old.about.from_file:
                raise _in_file(old, "change it there and reload")
        return self._plan(document, origin, _meant(request))

    def _replace(self, request: Request) -> Any:
        """Another document for a job that there is, whatever it came from."""
        document = request.get("job") or {}
        name = document.get("name") if isinstance(document, dict) else None
        old = self._job({"name": name})
        later, told = Later(), Later()
        later.then(lambda answer: told.done(_replaced(answer)))
        self._plan(document, old.about.origin, Meant(), later)
        return told

    def _plan(self, document: Any, origin: str, meant: Meant, later: Later | None = None) -> Later:
        """Have the document parsed and the job built on the planning thread, then post it.

        Both take 1 to 4 ms for a document whose expressions are compiled, and up to 0.3 s where
        they are the first of their kind in this process (imports, kernels from the cache): too
        long for a beat to wait for.
        """
        daemon, answer = self._daemon, later or Later()

        def work() -> None:
            try:
                plan = parse_job(document)
                job = JobRuntime(plan, daemon.context)
                now_us = daemon.clock.wall_us()
                change = Change("put", plan.name, now_us, plan.document, origin)
                self._post(Posted(change, job, meant, answer.done))
            except EdgedError as problem:
                answer.done(problem)
            except Exception as problem:  # a defect in reading a document ends no daemon
                answer.done(CommandError("failed", f"{type(problem).__name__}: {problem}"))

        daemon.planner.submit(work)
        return answer

    def _state(self, request: Request, state: str, ends: bool = False) -> Later:
        name, later = self._job(request).plan.name, Later()
        change = Change("state", name, self._daemon.clock.wall_us(), state=state, ends=ends)
        self._post(Posted(change, None, _meant(request), lambda a: later.done(_brief(a))))
        return later

    def _delete(self, request: Request) -> Later:
        job, drain = self._job(request), request.get("drain", False)
        if job.about.from_file:
            raise _in_file(job, "remove the file and reload")
        if not isinstance(drain, bool):
            raise CommandError("invalid", f"{drain!r} is not true or false", where="drain")
        if drain:
            return self._state(request, DRAINING, ends=True)
        later, now_us = Later(), self._daemon.clock.wall_us()
        change = Change("delete", job.plan.name, now_us)
        self._post(Posted(change, None, _meant(request), lambda a: later.done(_brief(a))))
        return later

    def _post(self, posted: Posted) -> None:
        """Ask the heart for a change; any thread.  Raises CommandError where it would have to wait
        for room in the store: nobody waits so long for an answer."""
        if self._daemon.committer.room.full:
            do = "try again when the centre has taken pages"
            raise CommandError("busy", "the store is full", do=do, retry_s=5.0)
        self._daemon.heart.post(posted)

    def _pin(self, request: Request) -> Any:
        """Choose the kernel of a job's operator, or with `auto` leave it to placement."""
        job, operator, kernel = (str(request.get(k)) for k in ("job", "operator", "kernel"))
        found = self._daemon.recovered.book.get(job)
        if found is None:
            raise CommandError("missing", f"there is no job {job}", where="job")
        runs = found.pin(operator, None if kernel == AUTO else kernel)
        facts = {"operator": operator, "kernel": runs, "pinned": kernel != AUTO}
        text = f"job {job}: {operator} runs {runs}, {'pinned' if kernel != AUTO else 'placed'}"
        self._daemon.events.add("kernel.switched", text, job=job, facts=facts)
        return {"job": job, **facts}

    # energy ------------------------------------------------------------------------------------

    def _steer(self, request: Request) -> Any:
        """Go on with another policy, or say which one runs; with `job`, of that job.  `none`: with
        the one that no command chose.  The answer comes when the choice is kept."""
        side, name = self._side(), request.get("policy")
        if name is None:
            return side.policy()
        settings = request.get("settings") or {}
        if not isinstance(settings, dict):
            raise CommandError("invalid", "is not a table of settings", where="settings")
        if request.get("job") is not None:
            return self._steer_job(side, self._job({"name": request["job"]}), str(name), settings)
        origin, keep = request.get("origin", COMMAND), request.get("keep", True)
        if origin not in (COMMAND, CENTRE) or not isinstance(keep, bool):
            do = f"origin is {COMMAND} or {CENTRE}, keep is true or false"
            raise CommandError("invalid", f"{origin!r}, {keep!r}", where="origin, keep", do=do)
        chosen = (
            self._daemon.unchosen() if name == NONE else PolicyChoice(str(name), settings, origin)
        )
        told = side.switch(chosen.policy, chosen.settings, chosen.origin)
        facts = {"policy": told["policy"], "was": told["was"], "settings": dict(chosen.settings)}
        text = f"policy {name}; {told['policy']} runs"
        self._daemon.events.add("policy.switched", text, facts=facts)
        return self._keep(side, told) if keep else told

    def _keep(self, side: EnergyGovernor, told: Request) -> Later:
        """Have the planning thread keep a command's choice over restarts, or no more: a disk takes
        longer than a beat may wait."""
        kept, own, later = self._daemon.kept, side.policies.own, Later()
        choice, configured = (own if own.origin == COMMAND else None), side.configured

        def write() -> None:
            try:
                kept.save(choice, configured)
                later.done(told)
            except OSError as problem:
                text = f"{told['policy']} runs, but a restart will not know of it: {problem}"
                later.done(CommandError("failed", text))

        self._daemon.planner.submit(write)
        return later

    def _steer_job(
        self, side: EnergyGovernor, job: JobRuntime, policy: str, settings: Request
    ) -> Later:
        """A job's policy is another from the next beat on; `none`: its document's again, if that
        names one.  The answer is the job's choice, when it is durable."""
        name, later, governor = job.plan.name, Later(), None
        if policy != NONE:
            side.check(policy, settings)
            governor = {"policy": policy, "settings": settings}

        def done(answer: Any) -> None:
            if isinstance(answer, dict):
                facts = {"policy": policy, "settings": settings}
                text = f"policy {policy} for job {name}"
                self._daemon.events.add("policy.switched", text, job=name, facts=facts)
                answer = {"job": name, **facts}
            later.done(answer)

        change = Change("policy", name, self._daemon.clock.wall_us(), governor=governor)
        self._post(Posted(change, done=done))
        return later

    def _side(self) -> EnergyGovernor:
        if self._daemon.energy is None:
            do = "start the daemon with --board"
            raise CommandError("conflict", "no board is watched", do=do)
        return self._daemon.energy


def _in_file(job: JobRuntime, do: str) -> CommandError:
    path = job.about.origin.removeprefix(FILE)
    return CommandError("conflict", f"job {job.plan.name} comes from {path or 'a file'}", do=do)


def _meant(request: Request) -> Meant:
    def found(key: str, most: int) -> int | None:
        return None if request.get(key) is None else integer(request, key, None, 0, most)

    return Meant(found("if_version", 2**31), found("if_created_us", 2**63 - 1))


def _brief(answer: Any) -> Any:
    """Of a change of state only the job is told."""
    return {"job": answer["job"]} if isinstance(answer, dict) else answer


def _replaced(answer: Any) -> Any:
    if not isinstance(answer, dict):
        return answer
    return {"replaced": answer["job"]["name"], "notes": answer["notes"]}


def integer(request: Request, key: str, default: int | None, least: int, most: int) -> int:
    """A whole number of a request.  Raises CommandError."""
    value = request.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        allowed = f"a whole number of {least} to {most}"
        raise CommandError("invalid", f"{value!r} is not {allowed}", where=key)
    return value


def text(request: Request, key: str) -> str:
    """A text of a request.  Raises CommandError."""
    value = request.get(key)
    if not isinstance(value, str) or not value:
        raise CommandError("invalid", f"{value!r} is not a text", where=key)
    return value
