"""`python -m edged.uplink FD`: the uplink's process, started by `edged.uplink.handle.Uplink`."""

import sys

from edged.uplink.child import run

run(*map(int, sys.argv[1:]))
