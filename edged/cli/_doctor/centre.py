"""The link to the centre; and what a machine needs that is one: Java, PySpark."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

from edged.cli._doctor.base import (
    ANSWER_S,
    Finding,
    Machine,
    check,
    failure,
    ok,
    optional,
    warning,
)
from edged.errors import EdgedError


@check("centre")
def uplink(machine: Machine) -> Iterator[Finding]:
    """Whether the collector's address answers."""
    url = machine.config.uplink.url
    if not url:
        yield optional("collector", "none is configured: pages wait in the store", "[uplink] url")
        return
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), ANSWER_S).close()
    except OSError as problem:
        text = f"{url} does not answer: {problem.strerror or problem}; pages wait in the store"
        yield warning("collector", text)
    else:
        yield ok("collector", f"{url} answers")


@check("centre")
def spark(machine: Machine) -> Iterator[Finding]:
    """Java and PySpark, for `edged central aggregate`."""
    del machine
    from edged.central.session import check_java, check_pyspark

    for name, run in (("pyspark", check_pyspark), ("java", check_java)):
        try:
            run()
        except EdgedError as problem:
            text, _, remedy = str(problem).partition(": install it with: ")
            if not remedy:
                text, _, remedy = str(problem).partition("; install it with: ")
            yield optional(name, f"{text} (only a centre needs it)", remedy)
        else:
            yield ok(name, "found")


@check("centre")
def pyspark_python(machine: Machine) -> Iterator[Finding]:
    """The interpreter of Spark's executors."""
    del machine
    chosen = os.environ.get("PYSPARK_PYTHON")
    if chosen is None:
        return
    program = shutil.which(chosen)
    if program is None:
        yield failure("PYSPARK_PYTHON", f"{chosen} is not a program", "unset PYSPARK_PYTHON")
        return
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run(
            [program, "-c", code], capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
        version = done.stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        version = ""
    own = ".".join(map(str, sys.version_info[:2]))
    if version == own:
        yield ok("PYSPARK_PYTHON", f"{program}, Python {version}")
    else:
        text = f"{program} is Python {version or 'unknown'}, the driver's is {own}"
        yield failure("PYSPARK_PYTHON", text, f"export PYSPARK_PYTHON={sys.executable}")
