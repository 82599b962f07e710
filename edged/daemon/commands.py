"""The commands of the control door: validated, executed between beats, answered.

Each command is a method that takes the request and returns the answer, or a Future where it waits
for a commit or for work on another thread.  No value of a request is trusted.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from edged.beat.changes import ChangeRequest, CheckRequest, JobAnswer, JobCandidate
from edged.beat.jobs import Precondition, describe
from edged.beat.runtime import JobRuntime
from edged.beat.shelf import REMEDY, SHELVED, ShelvedJob
from edged.centre_link.link import CentreLink
from edged.config.sections import LEVELS
from edged.control.futures import mapped, resolve
from edged.daemon import graph_commands
from edged.daemon.graph_records import GraphPrecondition
from edged.daemon.job_states import ImportedState
from edged.daemon.parts import Parts
from edged.daemon.reload import Reloader
from edged.daemon.requests import Request, integer, text
from edged.daemon.status import status_document
from edged.documents import reader as doc
from edged.energy import status
from edged.energy.policies import COMMAND, PolicyChoice
from edged.energy.runtime import EnergyGovernor
from edged.errors import CommandError, EdgedError
from edged.events.log import EVENTS_MAX
from edged.job.changes import API, CENTRE, DRAINING, FILE, PAUSED, RUNNING, Change
from edged.job.graph_tag import graph_tag
from edged.job.plan import parse_job
from edged.placement.placement import AUTO

Answer = dict[str, Any]
NONE = "none"
"""In place of a policy's name: withdraws a command's choice."""


class DoorCommands:
    """Executes commands on a daemon; the heart's thread only.

    `stop` takes the time in µs that a drain may take; 0: no drain.
    """

    def __init__(
        self,
        parts: Parts,
        centre: CentreLink | None,
        reloader: Reloader | None,
        stop: Callable[[int], None],
    ) -> None:
        self._parts, self._centre, self._configured_reloader = parts, centre, reloader
        self._on_stop = stop
        self._commands: dict[str, Callable[[Request], Answer | Future[Any]]] = {
            "status": self._status,
            "events": self._events,
            "stop": self._stop,
            "config": lambda _: {"values": self._reloader().values()},
            "reload": lambda _: self._reloader().begin(),
            "jobs": lambda _: {"jobs": [describe(job) for job in self._all_jobs()]},
            "job": lambda request: describe(self._found(request)),
            "job.put": self._put,
            "job.validate": lambda request: self._put(request, check=True),
            "job.pause": lambda request: self._state(request, PAUSED),
            "job.resume": lambda request: self._state(request, RUNNING),
            "job.drain": lambda request: self._state(request, DRAINING),
            "job.delete": self._delete,
            "replace": self._replace,
            "graphs": lambda _: {"graphs": parts.graphs.all()},
            "graph": lambda request: {"graph": parts.graphs.get(text(request, "name"))},
            "graph.put": partial(graph_commands.put, parts),
            "graph.delete": partial(graph_commands.delete, parts.graphs),
            "job.export": lambda request: parts.states.export(self._job(request)),
            "state.read": lambda request: parts.states.read(
                text(request, "name"), integer(request, "offset", 0, 0, 2**40)
            ),
            "state.write": self._write_state,
            "kernel": self._pin,
            "governor": self._govern,
            "energy": lambda _: status.energy(self._energy(), parts.clock.monotonic_us()),
            "uplink.retry": self._retry,
            "log": self._log,
        }

    def __call__(self, request: Request) -> Answer | Future[Any]:
        """The answer.  Raises EdgedError."""
        cmd = str(request.get("cmd"))
        if cmd not in self._commands:
            known = ", ".join(sorted([*self._commands, "watch"]))
            raise CommandError("unsupported", f"unknown command {cmd!r}; there are {known}")
        return self._commands[cmd](request)

    def _status(self, _: Request) -> Future[Answer]:
        answer: Future[Answer] = Future()
        self._parts.uplink.after_acks(lambda: resolve(answer, lambda: status_document(self._parts)))
        return answer

    def _events(self, request: Request) -> Answer:
        last = integer(request, "since", 0, 0, 2**63 - 1)
        return self._parts.events.page(last, integer(request, "limit", 100, 1, EVENTS_MAX))

    def _stop(self, request: Request) -> Answer:
        drain = request.get("drain", False)
        if not isinstance(drain, bool):
            raise CommandError("invalid", f"{drain!r} is not true or false", where="drain")
        within_s = integer(request, "within_s", 60, 1, 86_400)
        self._on_stop(within_s * 1_000_000 if drain else 0)
        return {"stopping": True}

    def _retry(self, _: Request) -> Answer:
        if not self._parts.uplink.serves:
            raise CommandError("conflict", "there is no uplink", do="start the daemon with one")
        self._parts.uplink.retry()
        return {"retrying": True}

    def _log(self, request: Request) -> Answer:
        log, level = self._parts.events.log, request.get("level", "")
        previous = log.level
        if level:
            if level not in LEVELS:
                choice = f"one of {', '.join(LEVELS)}"
                raise CommandError("invalid", f"{level!r} is no level", where="level", do=choice)
            log.level = level
        return {"level": log.level, "was": previous}

    def _reloader(self) -> Reloader:
        if self._configured_reloader is None:
            raise CommandError("unsupported", "there is no configuration to read")
        return self._configured_reloader

    # jobs --------------------------------------------------------------------------------------

    def _all_jobs(self) -> list[JobRuntime | ShelvedJob]:
        return [*self._parts.heart.jobs, *self._parts.registry.shelved.values()]

    def _found(self, request: Request) -> JobRuntime | ShelvedJob:
        """The job, running or shelved."""
        name = text(request, "name")
        job = self._parts.registry.find(name)
        if job is None:
            raise CommandError("missing", f"no job {name} is running", where="name")
        return job

    def _job(self, request: Request) -> JobRuntime:
        """The running job."""
        job = self._found(request)
        if isinstance(job, ShelvedJob):
            what = f"job {job.name} is {SHELVED}: {job.reason}"
            raise CommandError("conflict", what, where="name", do=REMEDY)
        return job

    def _put(self, request: Request, check: bool = False) -> Future[Any]:
        """Create a job, or replace the document of an existing one; with `check`, only decide
        whether that can be done."""
        document, origin = request.get("document"), request.get("origin", API)
        if origin not in (API, CENTRE):
            raise CommandError("invalid", f"{origin!r} is not {API} or {CENTRE}", where="origin")
        name = str(document.get("name")) if isinstance(document, dict) else ""
        if isinstance(document, dict):
            old = self._parts.registry.find(name)
            if old is not None and old.meta.from_file:
                raise _in_file(name, old.meta.origin, "change it there and reload")
        states = self._parts.states
        moved = states.imported(name) if request.get("state") is True else None
        fenced = self._fenced(document, origin, request)
        answer = self._plan(document, origin, fenced, check, moved)
        if moved is None or check:
            return answer

        def on_answer(done: Future[Any]) -> None:
            if done.exception() is None:  # a refused put may be repeated
                states.loaded(name, moved)

        answer.add_done_callback(on_answer)
        return answer

    def _write_state(self, request: Request) -> Answer:
        """Take a part of a state that is to be put with a job."""
        name, data = doc.is_id("name", text(request, "name")), text(request, "data")
        offset = integer(request, "offset", 0, 0, 2**40)
        return self._parts.states.write(name, offset, data)

    def _fenced(self, document: Any, origin: str, request: Request) -> Precondition:
        """The precondition of a put; of a graph's job it has the graph's version, too.  The centre
        assigns versions of its own."""
        found = _precondition(request)
        tag = graph_tag(document) if isinstance(document, dict) and origin == API else None
        if tag is None:
            return found
        return GraphPrecondition(found.version, found.created_us, self._parts.graphs, tag)

    def _replace(self, request: Request) -> Future[Answer]:
        """Replace the document of an existing job of any origin."""
        document = request.get("job") or {}
        name = document.get("name") if isinstance(document, dict) else None
        origin = self._job({"name": name}).meta.origin
        return mapped(
            self._plan(document, origin, Precondition()),
            lambda answer: {"replaced": answer["job"]["name"], "notes": answer["notes"]},
        )

    def _plan(
        self,
        document: Any,
        origin: str,
        precondition: Precondition,
        check: bool = False,
        moved: ImportedState | None = None,
    ) -> Future[Any]:
        """Parse the document and build the job on the planner thread, then request the change, or
        with `check` its check.  The future is that of the request.

        Both take 1 to 4 ms if the document's expressions are compiled, and up to 0.3 s for the
        first of their kind in this process (imports, kernels from the cache): too long for a beat
        to wait.
        """
        parts, answer = self._parts, Future[Any]()

        def plan() -> None:
            try:
                made = parse_job(document)
                parts.settings.confinement.check(made)
                change = Change("put", made.name, parts.clock.wall_us(), made.document, origin)
                if check:
                    self._post(CheckRequest(change, JobCandidate.of(made), precondition, answer))
                    return
                job = JobRuntime(made, parts.sink_context)
                state = None if moved is None else moved.unpacked()
                self._post(ChangeRequest(change, job, precondition, answer, state))
            except EdgedError as problem:
                answer.set_exception(problem)
            except Exception as problem:  # a defect in reading a document must not end the daemon
                failure = CommandError("failed", f"{type(problem).__name__}: {problem}")
                answer.set_exception(failure)

        parts.planner.submit(plan)
        return answer

    def _state(self, request: Request, state: str, ends: bool = False) -> Future[Answer]:
        name, now_us = self._job(request).plan.name, self._parts.clock.wall_us()
        change = Change("state", name, now_us, state=state, ends=ends)
        return self._change(request, change)

    def _delete(self, request: Request) -> Future[Answer]:
        job, drain = self._found(request), request.get("drain", False)
        name = text(request, "name")
        if job.meta.from_file:
            raise _in_file(name, job.meta.origin, "remove the file and reload")
        if not isinstance(drain, bool):
            raise CommandError("invalid", f"{drain!r} is not true or false", where="drain")
        if drain:
            return self._state(request, DRAINING, ends=True)
        return self._change(request, Change("delete", name, self._parts.clock.wall_us()))

    def _change(self, request: Request, change: Change) -> Future[Answer]:
        """Request a change of state or a delete; the answer has only the job."""
        wanted = ChangeRequest(change, precondition=_precondition(request))
        self._post(wanted)
        return mapped(wanted.answer, lambda answer: {"job": answer["job"]})

    def _post(self, request: ChangeRequest | CheckRequest) -> None:
        """Request a change of the heart; any thread.  Raises CommandError while the store is full:
        the change would wait for room, longer than a client waits for an answer."""
        if self._parts.committer.gate.full:
            do = "try again when the centre has taken pages"
            raise CommandError("busy", "the store is full", do=do, retry_s=5.0)
        self._parts.heart.post(request)

    def _pin(self, request: Request) -> Answer:
        """Pin the kernel of a job's operator, or return the choice to placement (`auto`)."""
        job, operator, kernel = (str(request.get(k)) for k in ("job", "operator", "kernel"))
        found = self._parts.registry.get(job)
        if found is None:
            raise CommandError("missing", f"there is no job {job}", where="job")
        pinned = kernel != AUTO
        running = found.pin(operator, kernel if pinned else None)
        self._parts.publisher.kernel_switched(job, operator, running, pinned)
        return {"job": job, "operator": operator, "kernel": running, "pinned": pinned}

    # energy ------------------------------------------------------------------------------------

    def _govern(self, request: Request) -> Answer | Future[Answer]:
        """Switch the policy, of the daemon or with `job` of a job; without `policy`, report it.

        The policy `none` withdraws a command's choice.  The answer comes when the choice is kept.
        """
        energy, name = self._energy(), request.get("policy")
        if name is None:
            return energy.policy()
        settings = request.get("settings") or {}
        if not isinstance(settings, dict):
            raise CommandError("invalid", "is not a table of settings", where="settings")
        if request.get("job") is not None:
            job = self._job({"name": request["job"]})
            return self._govern_job(energy, job, str(name), settings)
        origin, keep = request.get("origin", COMMAND), request.get("keep", True)
        if origin not in (COMMAND, CENTRE) or not isinstance(keep, bool):
            do = f"origin is {COMMAND} or {CENTRE}, keep is true or false"
            raise CommandError("invalid", f"{origin!r}, {keep!r}", where="origin, keep", do=do)
        choice = PolicyChoice(str(name), settings, origin)
        if name == NONE:
            choice = self._default_choice(energy)
        result = energy.switch(choice.policy, choice.settings, choice.origin)
        self._parts.publisher.policy_switched(
            str(name), result["policy"], result["was"], choice.settings
        )
        return self._keep(energy, result) if keep else result

    def _default_choice(self, energy: EnergyGovernor) -> PolicyChoice:
        """The daemon's policy where no command has chosen one: the centre's, else the
        configuration's."""
        policy = None if self._centre is None else self._centre.follower.policy
        if policy is None:
            return energy.configured
        return PolicyChoice(policy["name"], policy["settings"], CENTRE)

    def _keep(self, energy: EnergyGovernor, result: Answer) -> Future[Answer]:
        """Write a command's choice, or that there is none, for the next start.  The planner thread
        writes: a disk takes longer than a beat may wait."""
        store, own, answer = self._parts.policy_store, energy.policies.own, Future[Answer]()
        choice, configured = (own if own.origin == COMMAND else None), energy.configured

        def write() -> None:
            try:
                store.save(choice, configured)
                answer.set_result(result)
            except OSError as problem:
                text = f"{result['policy']} runs, but cannot be kept for the next start: {problem}"
                answer.set_exception(CommandError("failed", text))

        self._parts.planner.submit(write)
        return answer

    def _govern_job(
        self, energy: EnergyGovernor, job: JobRuntime, policy: str, settings: Request
    ) -> Future[Answer]:
        """Switch a job's policy from the next beat on; `none` returns to its document's.

        The answer is the job's choice, when it is durable.
        """
        name, governor = job.plan.name, None
        if policy != NONE:
            energy.check(policy, settings)
            governor = {"policy": policy, "settings": settings}

        def publish(_: JobAnswer) -> Answer:
            self._parts.publisher.job_policy_switched(name, policy, settings)
            return {"job": name, "policy": policy, "settings": settings}

        change = Change("policy", name, self._parts.clock.wall_us(), governor=governor)
        request = ChangeRequest(change)
        self._post(request)
        return mapped(request.answer, publish)

    def _energy(self) -> EnergyGovernor:
        if self._parts.energy is None:
            do = "start the daemon with --board"
            raise CommandError("conflict", "no board is watched", do=do)
        return self._parts.energy


def _in_file(name: str, origin: str, do: str) -> CommandError:
    path = origin.removeprefix(FILE)
    return CommandError("conflict", f"job {name} comes from {path or 'a file'}", do=do)


def _precondition(request: Request) -> Precondition:
    def found(key: str, most: int) -> int | None:
        return None if request.get(key) is None else integer(request, key, None, 0, most)

    return Precondition(found("if_version", 2**31), found("if_created_us", 2**63 - 1))
