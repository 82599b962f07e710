"""`make walk`: the first day's documents, typed into a terminal of a fresh Debian.

    python -m tests.system.walk [--json build/walk.json]

The machine is that of `make system`, with a network, git, make and sudo, and a clone of the last
commit.  Each document begins in a new shell; its blocks run in order, and the first command that
fails ends the run.  pip's configuration and cache are those of this machine.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.readme.blocks import DOCUMENTS, ROOT, blocks, job_texts
from tests.readme.terminal import TAKES_ROWS, Terminal
from tests.system.machine import Machine, base

BUILD = Path("build/system")
HOME = "/root/edged"
PROGRAMS = ("git", "make", "sudo")
"""What the machine has beside the packages of `make system`."""
HOSTS = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
"""As Debian's installer writes it; debootstrap alone writes none."""
CONFIGURATIONS = ("/etc/pip.conf", "/root/.config/pip/pip.conf")
CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/usr/local/share/ca-certificates")
INTO = f"cd {HOME} && exec bash --norc -i"
COMMAND_S = 1800
PROMPT = re.compile(r"walked\[(\d+)\]> ")
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root", "LANG": "C.UTF-8", "TERM": "xterm", "EDITOR": "true",
    "PS1": "walked[$?]> ",
}  # fmt: skip


class Failed(AssertionError):
    """A command that ended with another status than 0."""


class Shell:
    """An interactive bash in the machine, in the clone's directory."""

    def __init__(self, machine):
        pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        words = ["nsenter", "--all", "--target", str(machine.leader), "--wd=/", "--"]
        self._terminal = Terminal([*words, "sh", "-c", INTO], env={**ENVIRONMENT, **pip})
        self._status(0)

    def type(self, command):
        """Run a command; returns its status and what it printed.  `edged top` gets a q."""
        begin = len(self._terminal.text)
        self._terminal.press(f"{command}\n".encode())
        if re.match(r"edged top(?!.*--once)", command):
            self._terminal.read_until(lambda: TAKES_ROWS.search(self._terminal.text, begin))
            self._terminal.press(b"q")
        return self._status(begin), self._terminal.text[begin:]

    def _status(self, begin):
        def found():
            return PROMPT.search(self._terminal.text, begin)

        self._terminal.read_until(found, COMMAND_S)
        if not (prompt := found()):
            raise Failed(f"the shell ended: {self._terminal.text[-2000:]}")
        return int(prompt[1])

    def close(self):
        self._terminal.close()


def commands(document, machine):
    """(place, command) of all that runs; writes jobs and programs into the clone's build/."""
    found = blocks(document)
    jobs = dict(job_texts(found))
    place = machine.root / HOME[1:] / "build" / "walk"
    place.mkdir(parents=True, exist_ok=True)
    for block in found:
        if block.excerpt:
            continue
        if block.kind == "sh":
            yield from ((block.place, command) for command in block.commands)
            continue
        name = f"{Path(document).stem}-{block.line}.{'toml' if block.kind == 'toml' else 'py'}"
        (place / name).write_text(jobs.get(block, block.text))
        tool = "edged validate" if block.kind == "toml" else ".venv/bin/python"
        yield block.place, f"{tool} build/walk/{name}"


def furnish(machine):
    """Programs, pip's configuration and certificates of this machine, and the clone."""
    machine.run("apt-get", "update", "-qq", timeout_s=300)
    machine.run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *PROGRAMS,
                timeout_s=600)  # fmt: skip
    (machine.root / "etc/hosts").write_text(HOSTS)
    for name in (*CONFIGURATIONS, *CERTIFICATES):
        source, target = Path(name), machine.root / name[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif source.exists():
            shutil.copy(source, target)
    target = machine.root / HOME[1:]
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", ROOT, target], check=True)


def pip_directories():
    """What Machine shares: package directories that pip's configuration names, and its cache."""
    said = [Path(name).read_text() for name in CONFIGURATIONS if Path(name).exists()]
    said += [value for name, value in os.environ.items() if name.startswith("PIP_")]
    paths = re.findall(r"(?<![:/\w])/[\w./-]+|(?<=file://)/[\w./-]+", "\n".join(said))
    local = {path.removesuffix("/simple") for path in paths if Path(path).is_dir()}
    cache = Path.home() / ".cache/pip"
    cache.mkdir(parents=True, exist_ok=True)
    return {**dict.fromkeys(sorted(local), True), str(cache): False}


class Walk:
    """The steps so far, and their report."""

    def __init__(self):
        self.steps = []

    def step(self, place, command, work):
        """Run `work`, which returns (status, output); raises Failed where the status is not 0."""
        began, status, said = time.monotonic(), 1, ""
        try:
            status, said = work()
        except Exception as failure:
            said = f"{type(failure).__name__}: {failure}"
            raise
        finally:
            seconds = round(time.monotonic() - began, 1)
            found = {"place": place, "command": command, "status": status, "seconds": seconds}
            self.steps.append(found | ({"output": said[-4000:]} if status else {}))
            word = "FAIL" if status else "ok  "
            sys.stderr.write(f"{word} {seconds:7.1f} s  {place:<18} {' '.join(command.split())}\n")
        if status:
            raise Failed(f"{place}: {command}: status {status}\n{said[-4000:]}")

    def document(self, document, machine):
        with contextlib.closing(Shell(machine)) as shell:
            for place, command in commands(document, machine):
                self.step(place, command, lambda command=command: shell.type(command))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path, default=Path("build/walk.json"))
    options = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    walk = Walk()

    def prepare(name, work):
        made = []
        walk.step("machine", name, lambda: (made.append(work()) or 0, ""))
        return made[0]

    try:
        tarball = prepare("make a Debian", lambda: base(BUILD))
        machine = prepare("unpack it", lambda: Machine(tarball, BUILD, pip_directories()))
        prepare("boot it", machine.__enter__)
        try:
            prepare("furnish it", lambda: furnish(machine))
            for document in DOCUMENTS:
                walk.document(document, machine)
        finally:
            machine.__exit__()
    except Failed as failure:
        sys.exit(f"\n{failure}")
    finally:
        options.json.write_text(json.dumps({"steps": walk.steps}, indent=2) + "\n")


if __name__ == "__main__":
    main()
