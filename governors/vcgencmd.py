"""`vcgencmd`: questions to the firmware of a Raspberry Pi (docs/hardware.md 1.8).

Each answer costs a child process, so callers ask seldom.  A child has ANSWER_S; one that takes
longer is killed, and for AGAIN_S no other is started: a firmware that hangs stops nothing else.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from time import monotonic

from governors.sysfs import Sysfs

PLACES = ("/usr/bin/vcgencmd", "/opt/vc/bin/vcgencmd")
ANSWER_S = 0.5
AGAIN_S = 60.0
BYTES_MAX = 16 << 10


class FirmwareError(Exception):
    """The firmware was not asked, or gave no answer."""


class Vcgencmd:
    """The command of one board's tree."""

    def __init__(
        self, program: str, answer_s: float = ANSWER_S, clock_s: Callable[[], float] = monotonic
    ) -> None:
        self._program, self._answer_s, self._clock_s = program, answer_s, clock_s
        self._not_before_s = 0.0

    @classmethod
    def find(cls, sysfs: Sysfs) -> Vcgencmd | None:
        """The command of the tree, None where it is not installed."""
        found = (sysfs.place(path) for path in PLACES)
        return next((cls(program) for program in found if os.access(program, os.X_OK)), None)

    def ask(self, *words: str) -> str:
        """The answer.  Raises FirmwareError with the reason."""
        if self._clock_s() < self._not_before_s:
            raise FirmwareError("vcgencmd did not answer; it is asked again after a minute")
        try:
            done = subprocess.run(
                [self._program, *words], stdin=subprocess.DEVNULL, capture_output=True,
                timeout=self._answer_s, check=False, env={"PATH": "/usr/bin:/bin"},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            self._not_before_s = self._clock_s() + AGAIN_S
            raise FirmwareError(f"vcgencmd did not answer within {self._answer_s:g} s") from None
        except OSError as problem:
            raise FirmwareError(f"{self._program}: {problem.strerror}") from problem
        text = done.stdout[:BYTES_MAX].decode("utf-8", "replace")
        if done.returncode or text.startswith("error="):
            told = (done.stderr[:BYTES_MAX].decode("utf-8", "replace") + text).strip()
            first = told.splitlines()[0] if told else f"exit status {done.returncode}"
            raise FirmwareError(f"vcgencmd {' '.join(words)}: {first[:120]}")
        return text
