"""`python -m tests.metrics.odd CLOCK_S FSYNC_S edged …`: edged with a clock or a disk that is odd.

Clock and disk are what tests may fake: here they are a wall clock that is CLOCK_S ahead, and an
fdatasync that takes FSYNC_S longer.
"""

import os
import sys
import time

from edged.cli import main
from edged.platform import clock

if __name__ == "__main__":
    ahead_us, slow_s = round(float(sys.argv[1]) * 1e6), float(sys.argv[2])
    wall_us, fdatasync = clock.SystemClock.wall_us, os.fdatasync
    if ahead_us:
        clock.SystemClock.wall_us = lambda self: wall_us(self) + ahead_us
    if slow_s:
        os.fdatasync = lambda fd: (time.sleep(slow_s), fdatasync(fd))[1]
    sys.argv[1:] = sys.argv[4:]
    main()
