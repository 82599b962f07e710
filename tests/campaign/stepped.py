"""`edged` with a wall clock that the campaign steps: `python -m tests.campaign.stepped ARGUMENTS`.

The file `step` beside the store holds the microseconds to add to the machine's clock.
"""

import sys
import time
from pathlib import Path

from edged.cli import main
from edged.platform.clock import SystemClock

FILE = Path(sys.argv[sys.argv.index("--store") + 1]).with_name("step")


def wall_us(self):
    """The machine's clock and the step."""
    return time.time_ns() // 1000 + int(FILE.read_text() or 0)


if __name__ == "__main__":
    SystemClock.wall_us = wall_us
    main()
