"""`python -m edged.uplink FD`: the uplink process; `edged.uplink.handle.Uplink` starts it."""

import sys

from edged.uplink.child import run

run(*map(int, sys.argv[1:]))
