"""Makes the golden store and landing of a release: `python -m tests.data.golden FORMAT`.

    tests/data/golden-<format>.tar.xz
        job.json, committed  the job, and how many batches each producer had committed
        store/               killed: a snapshot, beats after it, pages in log and spool, a shelved
                             job whose plug-in is in plugin/, a paused job
        landing/             of a killed collector: sealed and unsealed segments, a reader, a
                             desired state of another device
        requests.json        the device's requests and the collector's answers, bodies in base64

All processes are those of the release (`tests/upgrade/releases.py`), so that the script runs again
on any later commit.  A golden file is never made again once a version has been released with it.
"""

import base64
import io
import json
import lzma
import os
import sys
import tarfile
import tempfile
from pathlib import Path

from edged.control.door import ask
from tests.plugins.test_failures import package
from tests.upgrade.fleet import PAUSED, PLUGGED, Fleet
from tests.upgrade.recorder import Recorder
from tests.upgrade.releases import RELEASED, site

TWICE = """
from edged.plugin import function
@function("twice", arguments=("DOUBLE",), returns="DOUBLE")
def twice(x): return 2 * x
"""


def make(format, place):
    """Run the release's device and collector in `place`, and kill them."""
    release = site(RELEASED[format])
    package(place / "plugin", "good", "edged.functions", "twice", TWICE)
    with Fleet(place) as fleet:
        fleet.collect(release)
        recorder = Recorder(fleet.collector_port)
        os.environ["PYTHONPATH"] = str(place / "plugin")
        fleet.run(release, uplink=recorder.port)
        ask(fleet.door, "job.put", document=PAUSED)
        ask(fleet.door, "job.pause", name="paused")
        ask(fleet.door, "job.put", document=PLUGGED)
        fleet.send(4)
        fleet.until(lambda s: s["jobs"]["plugged"]["sinks"] and s["store"]["backlog_pages"] == 0)
        fleet.collector.kill()
        fleet.send(6)
        fleet.device.kill()
        del os.environ["PYTHONPATH"]
        for last in (8, 16):
            fleet.run(release, uplink=recorder.port)
            fleet.send(last)
            fleet.until(lambda s: s["store"]["backlog_pages"] > 0)
            fleet.device.kill()
        committed = 16
        _add_reader(place / "landing")
        recorder.close()
    (place / "committed").write_text(f"{committed}\n")
    kept = [{**r, "body": base64.b64encode(r["body"]).decode()} for r in recorder.kept]
    (place / "requests.json").write_text(json.dumps(kept))


def _add_reader(landing):
    """A reader's position and a desired state, as these commands of format 1 write them."""
    (landing / "desired").mkdir(exist_ok=True)
    (landing / "desired" / "other.json").write_text('{"version": 3, "document": {"jobs": []}}')
    segments = sorted(p.stem for p in (landing / "segments").glob("*.idx"))
    position = {"stream": "counts@1", "position": {segments[0]: 1}}
    (landing / "consumers" / "golden.json").write_text(json.dumps(position, sort_keys=True))


def pack(place, file):
    """Write the tar with stable metadata."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for path in sorted(place.rglob("*")):
            inside = path.relative_to(place)
            if path.is_file() and not (path.parent == place and path.suffix == ".log"):
                tar.add(path, str(inside), recursive=False)
    file.write_bytes(lzma.compress(made.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def main():
    format = int(sys.argv[1])
    file = Path(__file__).with_name(f"golden-{format}.tar.xz")
    with tempfile.TemporaryDirectory() as place:
        make(format, Path(place))
        pack(Path(place), file)
        for path in sorted(Path(place).rglob("*")):
            if path.is_file() and "plugin" not in str(path):
                sys.stdout.write(f"{path.stat().st_size:>9} {path.relative_to(place)}\n")
    sys.stdout.write(f"{file}: {file.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
