"""`edged up`: daemon, REST API and a collector in one terminal."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from edged.console import options as checks

if TYPE_CHECKING:
    from edged.cli._local_stack import LocalStack
    from edged.job.plan import JobPlan


@click.command(name="up")
@click.argument("jobs", nargs=-1, required=True,
                type=click.Path(exists=True, dir_okay=False, path_type=Path))  # fmt: skip
@click.option("--directory", default="build/up", show_default=True,
              type=click.Path(file_okay=False, path_type=Path),
              help="Store, landing, sockets, configuration and logs; made if missing.")  # fmt: skip
@click.option("--device", help="The device's name at the collector.  [default: (host name)]")
@checks.board_option("[default: /]", default="/")
@click.option("--power-model", metavar="NAME", default="",
              help="As of `edged run`: a board profile whose figures stand in.")  # fmt: skip
@click.option("--policy", default="hands_off", show_default=True, help="Energy policy.")
@click.option("--until-end", is_flag=True,
              help="End when all sources have ended and the collector has all pages.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON on standard output.")
def command(
    jobs: tuple[Path, ...], directory: Path, device: str | None, board: str, power_model: str,
    policy: str, until_end: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run JOBS with a collector and a REST API of their own, until Ctrl-C.

    For the first minutes with edged, on one machine.  The collector listens on loopback and lands
    pages in DIRECTORY/landing; the API serves the unix socket DIRECTORY/api.sock.  A process that
    dies is restarted.  Ctrl-C ships the last pages and ends all; the next start continues from
    the store.  A device is installed with its own units instead: docs/install.md.
    """
    from edged.platform.libraries import use_libraries

    use_libraries()
    from edged.cli._local_stack import LocalStack, StackLayout
    from edged.config.sections import DeviceSection
    from edged.daemon.compilation import compile_kernels
    from edged.daemon.until_end import refuse_endless
    from edged.job.plan import load_job

    for number in (signal.SIGTERM, signal.SIGHUP):  # HUP: the terminal was closed
        signal.signal(number, _interrupt)
    plans = [load_job(path) for path in jobs]
    if until_end:
        refuse_endless(plans)
    say = _Events(as_json)
    layout = StackLayout(directory.absolute())
    with layout.locked():
        stack = LocalStack(layout, say.restarted, until_end)
        energy: dict[str, object] = {"board": board, "power_model": power_model, "policy": policy}
        layout.prepare(jobs, device or DeviceSection().effective_name, energy, stack.url)
        try:
            compile_kernels(quiet=as_json, plans=plans)
            for name in stack.start():
                say.started(name, stack, plans)
            say.ready(stack, directory)
            stack.supervise()
            say.ended()
        except KeyboardInterrupt:
            say.stopping()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)  # a second one would leave children behind
            stack.stop()


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


class _Events:
    """What happens to the processes: a line each on standard error, or JSON on standard output."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json

    def started(self, name: str, stack: LocalStack, plans: list[JobPlan]) -> None:
        """A process is ready, and where it is reached."""
        addresses = ", ".join(_listeners(plans))
        place = {
            "collector": f"listens on {stack.url}, lands pages in {stack.layout.landing}",
            "daemon": f"takes tuples on {addresses}" if addresses else "runs",
            "api": f"serves {stack.layout.api}",
        }
        self._emit(f"{name} {place[name]}", {"started": name})

    def ready(self, stack: LocalStack, directory: Path) -> None:
        """All are ready."""
        facts = {
            "ready": True,
            "pid": os.getpid(),
            "collector": stack.url,
            "config": str(stack.layout.config),
            "landing": str(stack.layout.landing),
            "api": str(stack.layout.api),
        }
        watch = f"edged top --api {directory / stack.layout.api.name}"
        self._emit(f"ready; watch it with: {watch}\nedged: Ctrl-C ends it", facts)

    def restarted(self, name: str, how: str) -> None:
        """A process died and is ready again."""
        self._emit(f"{name} {how} and was restarted", {"restarted": name, "exit": how})

    def ended(self) -> None:
        """The daemon has ended with success."""
        self._emit("the daemon has ended: its last pages are delivered", {"ended": True})

    def stopping(self) -> None:
        """The command was interrupted."""
        self._emit("stopping: the last pages go to the collector", {"stopping": True})

    def _emit(self, text: str, facts: dict[str, Any]) -> None:
        if self._json:
            click.echo(json.dumps(facts))
            sys.stdout.flush()
        else:
            click.echo(f"edged: {text}", err=True)


def _listeners(plans: list[JobPlan]) -> list[str]:
    """The addresses that the jobs' sources listen on, each once."""
    sources = (s["source"] for plan in plans for s in plan.document["streams"].values())
    return list(dict.fromkeys(str(s["listen"]) for s in sources if "listen" in s))
