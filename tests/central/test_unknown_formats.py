"""What a later version wrote ends a collector with 78, which its unit does not start again."""

import json
import subprocess
import sys
import zlib

from edged.central import landing_format, segments
from edged.central.landing_format import FORMAT
from tests.central.support import DEVICE, Collector, Device, make_page


def of_a_later_version(landing):
    """The path and the bytes of the device's record, which now has a greater format."""
    path = landing / "devices" / f"{segments.device_hash(DEVICE):016x}.record"
    content = bytearray(path.read_bytes())
    content[4] += 1
    content[60:64] = zlib.crc32(content[:60]).to_bytes(4, "little")
    path.write_bytes(content)
    return path, bytes(content)


def start(landing):
    """A collector that is expected to end."""
    return subprocess.run(
        [sys.executable, "-m", "edged", "central", "collect", "--landing", str(landing),
         "--listen", "127.0.0.1:0"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_a_record_of_a_later_version_ends_the_collector_that_meets_it_and_each_start(tmp_path):
    collector = Collector(tmp_path)
    with Device(collector) as device:
        device.register()
        assert device.send(make_page(1)).status_code == 200
        path, content = of_a_later_version(tmp_path)
        assert device.send(make_page(2)).status_code == 503
    assert collector.process.wait(120) == 78
    assert collector.stop() == 78 and "has format 2, this collector knows 1" in collector.log
    done = start(tmp_path)
    assert done.returncode == 78 and f"{path}: a high-water record has format 2" in done.stderr
    assert path.read_bytes() == content, "nothing was changed"


def test_a_landing_of_a_later_version_is_refused_and_left_alone(tmp_path):
    landing_format.create(tmp_path, fresh=True)
    path = tmp_path / landing_format.NAME
    later = {"edged": "9.9", "format": FORMAT + 1}
    path.write_bytes(2 * landing_format._line(later))
    assert json.loads(path.read_bytes().splitlines()[0])["format"] == FORMAT + 1
    before = sorted(tmp_path.rglob("*")), path.read_bytes()
    done = start(tmp_path)
    assert done.returncode == 78 and "written by edged 9.9" in done.stderr
    assert (sorted(tmp_path.rglob("*")), path.read_bytes()) == before
