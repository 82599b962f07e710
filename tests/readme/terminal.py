"""A process on a terminal, and keys for it."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

WAIT_S = 300
TAKES_ROWS = re.compile(r"stream +wind +[1-9][\d,]* /s")
"""A line of `edged top` with a rate of the README's second stream."""
CONTROL = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")


class Terminal:
    """A process on a terminal of 120 columns; `text` is what it has printed, without control
    sequences."""

    def __init__(self, words, **options):
        self.text = ""
        self.file, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 40, 120, 0, 0))
        self.process = subprocess.Popen(
            words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, **options
        )
        os.close(theirs)

    def read_until(self, found, wait_s=WAIT_S):
        """Read until `found()`, or until the terminal is closed; fails after `wait_s`."""
        end = time.monotonic() + wait_s
        while not found():
            assert time.monotonic() < end, self.text[-4000:]
            if select.select([self.file], [], [], 1.0)[0]:
                try:
                    data = os.read(self.file, 1 << 16)
                except OSError:  # EIO: its last process has ended
                    return
                self.text += CONTROL.sub("", data.decode(errors="replace"))

    def press(self, key):
        os.write(self.file, key)

    def close(self):
        os.close(self.file)  # SIGHUP for what still runs there
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(WAIT_S)
