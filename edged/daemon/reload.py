"""SIGHUP and the door's `reload`: the configuration is read anew, judged whole, then applied.

    begin ─► child: read, judge, compile expressions ─► jobs ─► policy, log level ─► told

Reading and compiling take up to minutes, so a child process does both
(`edged.daemon.configuration`); beats go on meanwhile.  If anything is wrong, nothing changes.
What a reload can apply are the jobs that files define, the policy, and the settings marked `live`;
other changes are told, and wait for the next start.  No tuple is lost: jobs change between two
beats, with their state (`edged.beat.jobs`), and one whose file is gone is drained before it goes.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged.beat.changes import Posted
from edged.beat.runtime import JobRuntime
from edged.config import SETTINGS, Config
from edged.control.door import Later
from edged.errors import CommandError, EdgedError
from edged.job.changes import DRAINING, FILE, Change
from edged.job.coexistence import in_order
from edged.job.plan import JobPlan, parse_job

if TYPE_CHECKING:
    from edged.daemon.configuration import JobFile, Verdict
    from edged.daemon.daemon import Daemon

Answer = dict[str, Any]
"""`{"applied": [what], "later": [keys that wait for the next start]}`."""


class Reloader:
    """Of one daemon.  `begin` and what it leads to run on the heart's thread, but for the child and
    for building jobs."""

    def __init__(
        self,
        daemon: Daemon,
        config: Config,
        path: Path | None,
        flags: Mapping[str, tuple[str, Any]],
    ) -> None:
        self.config = config
        """What counts now."""
        self._daemon, self._question = daemon, {"path": path and str(path), "flags": dict(flags)}
        self._waiting: list[Later] = []
        """Who began the reload that is under way."""
        self._next: list[Later] = []
        """Who asked while one was: files may have changed since, so there is another."""

    def begin(self) -> Later:
        """Reload, or after the one that is under way do so again."""
        later = Later()
        if self._waiting:
            self._next.append(later)
        else:
            self._waiting.append(later)
            self._start()
        return later

    def values(self) -> list[dict[str, Any]]:
        """Every setting with where it came from."""
        return self.config.values()

    def _start(self) -> None:
        self._daemon.service.reloading()
        threading.Thread(target=self._ask, name="edged-reload", daemon=True).start()

    def _ask(self) -> None:
        """On a thread of its own: have a child judge."""
        words = [sys.executable, "-m", "edged.daemon.configuration"]
        question = json.dumps(self._question).encode()
        try:
            done = subprocess.run(words, input=question, capture_output=True)
            if done.returncode:
                last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
                raise ChildProcessError(last)
            verdict: Verdict = pickle.loads(done.stdout)
        except Exception as problem:  # whatever it is, whoever waits is told
            refusal = _refusal([f"it could not be read: {problem}"])
            self._later(lambda: self._end(refusal))
            return
        self._later(lambda: self._judged(verdict))

    def _later(self, call: Callable[[], None]) -> None:
        """Call on the heart's thread."""
        self._daemon.waiter.call(call)

    def _judged(self, verdict: Verdict) -> None:
        """The child has read it."""
        if verdict.faults:
            self._end(_refusal(verdict.faults))
        elif self._daemon.committer.room.full:
            self._end(CommandError("busy", "the store is full", retry_s=5.0))
        else:
            self._daemon.planner.submit(self._plan, verdict)

    def _plan(self, verdict: Verdict) -> None:
        """On the planning thread: build what has changed, and check it together."""
        try:
            plans = {parse_job(file.document).name: file for file in verdict.jobs}
            posts = self._posts(plans)
        except Exception as problem:
            told = f"{type(problem).__name__}: {problem}"
            refusal = problem if isinstance(problem, EdgedError) else _refusal([told])
            self._later(lambda: self._end(refusal))
            return
        self._later(lambda: self._post(verdict.config, posts, []))

    def _posts(self, files: Mapping[str, JobFile]) -> list[Posted]:
        """The changes of jobs.  Raises EdgedError where they cannot be together."""
        daemon, now_us = self._daemon, self._daemon.clock.wall_us()
        running = {job.plan.name: job for job in list(daemon.heart.jobs)}
        stay = [job.plan for job in running.values() if not job.about.from_file]
        for plan in stay:
            if plan.name in files:
                raise CommandError(
                    "conflict", f"{files[plan.name].path}: job {plan.name} is there already, and no"
                    " file's", do="rename one of them, or delete that one",
                )  # fmt: skip
        plans = {name: parse_job(file.document) for name, file in files.items()}
        gone = [j for n, j in running.items() if j.about.from_file and n not in files]
        # until they have drained, those that go are there beside the new ones
        daemon.check([*stay, *plans.values(), *(job.plan for job in gone)])
        origins = {name: f"{FILE}{file.path}" for name, file in files.items()}
        changed = {n: p for n, p in plans.items() if not _is_so(running.get(n), p, origins[n])}
        before = {name: job.plan for name, job in running.items()}
        posts = []
        for name in in_order(before, changed, daemon.check):
            change = Change("put", name, now_us, plans[name].document, origins[name])
            posts.append(Posted(change, JobRuntime(plans[name], daemon.context)))
        for job in gone:
            change = Change("state", job.plan.name, now_us, state=DRAINING, ends=True)
            posts.append(Posted(change))
        return posts

    def _post(self, config: Config, posts: list[Posted], told: list[str]) -> None:
        """One job after the other, then the rest.  What fails now (a port is taken) ends it, and
        leaves the jobs before it, which are `told`."""
        if not posts:
            self._finish(config, told)
            return
        post, *rest = posts
        more = [*told, f"job {post.change.name}"]

        def done(result: Any) -> None:
            if isinstance(result, EdgedError):
                self._later(lambda: self._end(result))
            else:
                self._later(lambda: self._post(config, rest, more))

        try:
            self._daemon.heart.post(Posted(post.change, post.job, done=done))
        except EdgedError as problem:
            self._end(problem)

    def _finish(self, config: Config, told: list[str]) -> None:
        """The jobs are as they should be: apply what else can be."""
        daemon, changed = self._daemon, self.config.changed(config)
        try:
            if daemon.energy is not None and {"energy.policy", "energy.settings"} & set(changed):
                daemon.energy.configure(config.energy.policy, config.energy.settings)
                daemon.planner.submit(daemon.kept.save, None, daemon.energy.configured)
        except EdgedError as problem:
            self._end(problem)
            return
        if daemon.centre is not None and any(key.startswith("telemetry.") for key in changed):
            daemon.centre.set_telemetry(config.telemetry)
        if "log.level" in changed:
            daemon.events.log.level = config.log.level
        self.config = config
        applied = [key for key in changed if SETTINGS[key].live]
        later = [key for key in changed if not SETTINGS[key].live]
        self._end({"applied": [*applied, *told], "later": later})

    def _end(self, result: Answer | EdgedError) -> None:
        """Tell everybody."""
        events, waiting, self._waiting = self._daemon.events, self._waiting, []
        if isinstance(result, EdgedError):
            text = f"configuration refused: {result}"
            events.add("config.refused", text, level="error", facts={"problem": str(result)})
        else:
            text = "configuration reloaded: " + (", ".join(result["applied"]) or "nothing changed")
            if result["later"]:
                text += f"; at the next start: {', '.join(result['later'])}"
            events.add("config.reloaded", text, facts=result)
        for later in waiting:
            later.done(result)
        if self._next:
            self._waiting, self._next = self._next, []
            self._start()
        else:
            self._daemon.service.reloaded(text)


def _is_so(job: JobRuntime | None, plan: JobPlan, origin: str) -> bool:
    """Whether the job runs already, as it is in its file."""
    return job is not None and (job.plan.document, job.about.origin) == (plan.document, origin)


def _refusal(faults: list[str]) -> CommandError:
    return CommandError("invalid", "; ".join(faults), do="see edged validate")
