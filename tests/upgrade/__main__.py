"""Neighbouring versions work together: `make upgrade`, or `python -m tests.upgrade [COMMIT]`.

Real processes of this tree and of a wheel built from COMMIT (default: the last one of the format
before).  Every run ends with results that equal DuckDB's, exactly once.
"""

import sys
import tempfile
import time
from pathlib import Path

from edged.platform.disk import SystemDisk
from edged.store import identity
from tests.upgrade.fleet import Fleet
from tests.upgrade.releases import RELEASED, site

BATCHES = 12
NEW = None
"""The processes of this tree."""


def pair(place, device, collector):
    """A device and a collector of two versions; both are killed in between."""
    with Fleet(place) as fleet:
        fleet.collect(collector)
        fleet.run(device)
        fleet.send(5)
        fleet.device.kill()
        fleet.collector.kill()
        fleet.collect(collector)
        fleet.run(device)
        return fleet.finish(BATCHES)


def upgrade(place, old):
    """Device and collector of the old version are killed and replaced, the device first; the old
    device refuses the store then, and changes nothing."""
    with Fleet(place) as fleet:
        fleet.collect(old)
        fleet.run(old)
        fleet.send(5)
        fleet.device.kill()
        fleet.run(NEW)
        fleet.send(7)
        fleet.device.kill()
        found = identity.read_format(SystemDisk(), str(fleet.store / "identity"))
        _refused(fleet, old, found)
        fleet.collector.kill()
        fleet.collect(NEW)
        fleet.run(NEW)
        return fleet.finish(BATCHES)


def _refused(fleet, old, found):
    try:
        fleet.run(old)
    except AssertionError as problem:
        assert "exit 75" in str(problem) and f"has format {found}" in str(problem), problem
        return
    raise AssertionError("the old version took a store of the new format")


def landing_shared(place, old):
    """Collectors of both versions, one after the other and back, on one landing."""
    with Fleet(place) as fleet:
        fleet.collect(NEW)
        fleet.run(NEW)
        for last, collector in ((4, old), (8, NEW)):
            fleet.send(last)
            fleet.collector.kill()
            fleet.collect(collector)
        return fleet.finish(BATCHES)


def main():
    commit = sys.argv[1] if len(sys.argv) > 1 else RELEASED[max(RELEASED)]
    old = site(commit)
    runs = {
        "old device, new collector": lambda place: pair(place, old, NEW),
        "new device, old collector": lambda place: pair(place, NEW, old),
        "upgrade after kills, downgrade refused": lambda place: upgrade(place, old),
        "landing of new, old and new collectors": lambda place: landing_shared(place, old),
    }
    for name, run in runs.items():
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as place:
            rows = run(Path(place))
        seconds = time.monotonic() - began
        sys.stdout.write(f"{name}: exact, {rows} rows ({commit}), {seconds:.0f} s\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
