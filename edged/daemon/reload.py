"""Reload of the configuration, by SIGHUP or the control door: read, checked as a whole, applied.

    begin ─► child: read, check, compile expressions ─► jobs ─► policy, log level ─► answers

Reading and compiling may take minutes, so a child process does both
(`edged.daemon.configuration_check`) while beats go on.  A configuration with any fault changes
nothing.  A reload applies the jobs of job files, the policy, and the settings marked `live`; other
changes are reported and wait for the next start.  No tuple is lost: jobs change between two beats
and keep their state (`edged.beat.jobs`), and a job whose file is gone is drained before it is
deleted.

Reload, desired state, API checks and expressions have a child process each, and share no planner
process: the four entry points have 60 lines together, less than a common protocol with its messages
would need, and a document that kills one child leaves the others running.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from edged.beat.changes import ChangeRequest, JobAnswer
from edged.beat.runtime import JobRuntime
from edged.centre_link.link import CentreLink
from edged.config import SETTINGS, Config
from edged.daemon.configuration import ConfigVerdict, JobFile
from edged.daemon.parts import Parts
from edged.errors import CommandError, EdgedError
from edged.job.changes import DRAINING, FILE, Change
from edged.job.coexistence import replacement_order
from edged.job.plan import JobPlan, parse_job


class ReloadAnswer(TypedDict):
    """What a reload did."""

    applied: list[str]
    """Changed settings and jobs."""
    later: list[str]
    """Keys of settings that wait for the next start."""


@dataclass(frozen=True)
class ConfigSource:
    """Where a configuration came from, so that it can be read again."""

    config: Config
    path: Path | None
    flags: Mapping[str, tuple[str, Any]]
    """Settings of the command line: by key, the flag and the value."""


class Reloader:
    """The reloads of one daemon, one at a time.

    All methods run on the heart's thread, except `_check`, which runs on a thread of its own, and
    `_plan`, which runs on the planner thread.
    """

    def __init__(self, parts: Parts, centre: CentreLink | None, source: ConfigSource) -> None:
        self.config = source.config
        """The configuration in effect."""
        self._parts, self._centre = parts, centre
        path = source.path and str(source.path)
        self._question = {"path": path, "flags": dict(source.flags)}
        self._answers: list[Future[ReloadAnswer]] = []
        """Answers that the reload under way resolves."""
        self._next_answers: list[Future[ReloadAnswer]] = []
        """Answers of requests that came meanwhile.  Files may have changed since, so another
        reload follows."""

    def begin(self) -> Future[ReloadAnswer]:
        """Reload now, or after the reload that is under way."""
        answer: Future[ReloadAnswer] = Future()
        if self._answers:
            self._next_answers.append(answer)
        else:
            self._answers.append(answer)
            self._start()
        return answer

    def values(self) -> list[dict[str, Any]]:
        """Every setting with its value and its origin."""
        return self.config.values()

    def _start(self) -> None:
        self._parts.service.reloading()
        threading.Thread(target=self._check, name="edged-reload", daemon=True).start()

    def _check(self) -> None:
        """Have a child process read and check the configuration."""
        child = "edged.daemon.configuration_check"
        command = [sys.executable, "-m", "edged.platform.libraries", child]
        question = json.dumps(self._question).encode()
        try:
            done = subprocess.run(command, input=question, capture_output=True)
            if done.returncode:
                last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
                raise ChildProcessError(last)
            verdict: ConfigVerdict = pickle.loads(done.stdout)
        except Exception as problem:  # any failure must resolve the answers
            refusal = _refusal([f"it could not be read: {problem}"])
            self._call(lambda: self._refuse(refusal))
            return
        self._call(lambda: self._on_verdict(verdict))

    def _call(self, call: Callable[[], None]) -> None:
        """Call on the heart's thread."""
        self._parts.event_loop.call(call)

    def _on_verdict(self, verdict: ConfigVerdict) -> None:
        if verdict.faults:
            self._refuse(_refusal(verdict.faults))
        elif self._parts.committer.gate.full:
            self._refuse(CommandError("busy", "the store is full", retry_s=5.0))
        else:
            self._parts.planner.submit(self._plan, verdict)

    def _plan(self, verdict: ConfigVerdict) -> None:
        """Build the changed jobs, and check that all jobs can run together."""
        try:
            files = {parse_job(file.document).name: file for file in verdict.jobs}
            requests = self._changes(files)
        except Exception as problem:
            text = f"{type(problem).__name__}: {problem}"
            refusal = problem if isinstance(problem, EdgedError) else _refusal([text])
            self._call(lambda: self._refuse(refusal))
            return
        self._call(lambda: self._apply_jobs(verdict.config, requests, []))

    def _changes(self, files: Mapping[str, JobFile]) -> list[ChangeRequest]:
        """The changes of jobs.  Raises EdgedError where they cannot run together."""
        parts, now_us = self._parts, self._parts.clock.wall_us()
        running = {job.plan.name: job for job in list(parts.heart.jobs)}
        stay = [job.plan for job in running.values() if not job.meta.from_file]
        for plan in stay:
            if plan.name in files:
                raise CommandError(
                    "conflict", f"{files[plan.name].path}: job {plan.name} exists already and comes"
                    " from no file", do="rename one of them, or delete the running one",
                )  # fmt: skip
        plans = {name: parse_job(file.document) for name, file in files.items()}
        gone = [j for n, j in running.items() if j.meta.from_file and n not in files]
        # jobs that go run beside the new ones until they are drained
        parts.job_host.check([*stay, *plans.values(), *(job.plan for job in gone)])
        origins = {name: f"{FILE}{file.path}" for name, file in files.items()}
        changed = {
            n: p for n, p in plans.items() if not _is_in_effect(running.get(n), p, origins[n])
        }
        before = {name: job.plan for name, job in running.items()}
        requests = []
        for name in replacement_order(before, changed, parts.job_host.check):
            change = Change("put", name, now_us, plans[name].document, origins[name])
            requests.append(ChangeRequest(change, JobRuntime(plans[name], parts.sink_context)))
        for job in gone:
            change = Change("state", job.plan.name, now_us, state=DRAINING, ends=True)
            requests.append(ChangeRequest(change))
        for name, shelved in list(parts.registry.shelved.items()):
            if shelved.meta.from_file and name not in files:  # it cannot be drained
                requests.append(ChangeRequest(Change("delete", name, now_us)))
        return requests

    def _apply_jobs(
        self, config: Config, requests: list[ChangeRequest], applied: list[str]
    ) -> None:
        """Change one job after the other, then the settings.

        A failure now, such as a port that is taken, ends the reload.  Jobs that are `applied`
        already stay changed.
        """
        if not requests:
            self._apply_settings(config, applied)
            return
        request, *rest = requests
        now_applied = [*applied, f"job {request.change.name}"]

        def on_answer(answer: Future[JobAnswer]) -> None:
            problem = answer.exception()
            if isinstance(problem, EdgedError):
                self._call(lambda: self._refuse(problem))
            else:
                self._call(lambda: self._apply_jobs(config, rest, now_applied))

        request.answer.add_done_callback(on_answer)
        try:
            self._parts.heart.post(request)
        except EdgedError as problem:
            self._refuse(problem)

    def _apply_settings(self, config: Config, jobs: list[str]) -> None:
        """Apply the settings that a running daemon can change."""
        parts, changed = self._parts, self.config.changed(config)
        try:
            if parts.energy is not None and {"energy.policy", "energy.settings"} & set(changed):
                parts.energy.configure(config.energy.policy, config.energy.settings)
                parts.planner.submit(parts.policy_store.save, None, parts.energy.configured)
        except EdgedError as problem:
            self._refuse(problem)
            return
        if parts.energy is not None and "energy.max_celsius" in changed:
            parts.energy.limit_heat(config.energy.max_celsius or None)
        if self._centre is not None and any(key.startswith("telemetry.") for key in changed):
            self._centre.set_telemetry(config.telemetry)
        if "log.level" in changed:
            parts.events.log.level = config.log.level
        self.config = config
        applied = [key for key in changed if SETTINGS[key].live]
        later = [key for key in changed if not SETTINGS[key].live]
        self._finish({"applied": [*applied, *jobs], "later": later})

    def _finish(self, result: ReloadAnswer) -> None:
        text = self._parts.publisher.config_reloaded(result["applied"], result["later"])
        answers, self._answers = self._answers, []
        for answer in answers:
            answer.set_result(result)
        self._end(text)

    def _refuse(self, problem: EdgedError) -> None:
        text = self._parts.publisher.config_refused(str(problem))
        answers, self._answers = self._answers, []
        for answer in answers:
            answer.set_exception(problem)
        self._end(text)

    def _end(self, text: str) -> None:
        """End a reload; start the next one where it was requested meanwhile."""
        if self._next_answers:
            self._answers, self._next_answers = self._next_answers, []
            self._start()
        else:
            self._parts.service.reloaded(text)


def _is_in_effect(job: JobRuntime | None, plan: JobPlan, origin: str) -> bool:
    """Whether the job runs as its file defines it."""
    return job is not None and (job.plan.document, job.meta.origin) == (plan.document, origin)


def _refusal(faults: list[str]) -> CommandError:
    return CommandError("invalid", "; ".join(faults), do="see edged validate")
