"""The commands that come through the door: checked, carried out between beats, answered.

Every command is a method that takes the request and returns the answer, or `Later` where it waits
for a commit or for work on another thread.  Nothing here trusts a request's values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from edged.energy import show
from edged.energy.runtime import Energy
from edged.errors import CommandError
from edged.events import EVENTS_MAX, LEVELS
from edged.job.plan import parse_job
from edged.placement import AUTO
from edged.snapshot import picture

if TYPE_CHECKING:
    from edged.daemon import Daemon

Request = dict[str, Any]


class Control:
    """Carries out commands on a daemon; the heart's thread only."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._commands: dict[str, Callable[[Request], Any]] = {
            "status": lambda _: picture(daemon),
            "events": self._page,
            "stop": self._stop,
            "replace": self._replace,
            "kernel": self._pin,
            "governor": self._steer,
            "energy": lambda _: show.energy(self._side(), daemon.clock.monotonic_us()),
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

    def _page(self, request: Request) -> Any:
        last = integer(request, "since", 0, 0, 2**63 - 1)
        return self._daemon.events.page(last, integer(request, "limit", 100, 1, EVENTS_MAX))

    def _stop(self, _: Request) -> Any:
        self._daemon.stop()
        return {"stopping": True}

    def _retry(self, _: Request) -> Any:
        uplink = self._daemon.uplink
        if uplink is None:
            raise CommandError("conflict", "there is no uplink", do="start the daemon with one")
        uplink.retry()
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

    # jobs --------------------------------------------------------------------------------------

    def _replace(self, request: Request) -> Any:
        """Replace a running job by another document of the same name, keeping its state."""
        plan = parse_job(request.get("job") or {})
        notes = self._daemon.replace(plan)
        return {"replaced": plan.name, "notes": notes}

    def _pin(self, request: Request) -> Any:
        """Choose the kernel of a job's operator, or with `auto` leave it to placement."""
        job, operator, kernel = (str(request.get(k)) for k in ("job", "operator", "kernel"))
        runs = self._daemon.heart.pin(job, operator, None if kernel == AUTO else kernel)
        facts = {"operator": operator, "kernel": runs, "pinned": kernel != AUTO}
        text = f"job {job}: {operator} runs {runs}, {'pinned' if kernel != AUTO else 'placed'}"
        self._daemon.events.add("kernel.switched", text, job=job, facts=facts)
        return {"job": job, **facts}

    # energy ------------------------------------------------------------------------------------

    def _steer(self, request: Request) -> Any:
        """Go on with another policy, or say which one runs."""
        side, name = self._side(), request.get("policy")
        if name is None:
            return side.policy()
        settings = request.get("settings") or {}
        if not isinstance(settings, dict):
            raise CommandError("invalid", "is not a table of settings", where="settings")
        return side.switch(str(name), settings)

    def _side(self) -> Energy:
        if self._daemon.energy is None:
            do = "start the daemon with --board"
            raise CommandError("conflict", "no board is watched", do=do)
        return self._daemon.energy


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
