"""The job's upload windows and the centre's, together: pages are sent when both allow it, or on
request."""

from __future__ import annotations

import json
import time
from collections import Counter

from click.testing import CliRunner

from edged.central.cli_desired import command
from tests.beat.loop import batch
from tests.beat.support import changed
from tests.beat.test_changes import QUICK, renamed
from tests.beat.test_heart_waits import Running
from tests.central.support import by_partition, collecting
from tests.system.support import until

HOUR_S = 3600
TELEMETRY = "edged.telemetry"


def at(seconds):
    """A time of day, UTC, `seconds` from now."""
    return time.strftime("%H:%M", time.gmtime(time.time() + seconds))


class Centre:
    """The centre's desired state of the device, and the device's status."""

    def __init__(self, landing, running):
        self.landing, self.running, self.version = landing, running, 0

    def wants(self, *windows):
        """Set these upload windows; returns when the device has applied them."""
        self.version += 1
        path = self.landing.parent / f"wanted{self.version}.json"
        path.write_text(json.dumps({"windows": list(windows)}))
        done = CliRunner().invoke(command, ["dev", str(path), "--landing", str(self.landing)])
        assert done.exit_code == 0, done.output
        self.until(lambda u: (u["desired"] or {}).get("applied") == self.version)

    def uplink(self):
        status = self.running.status()
        return {**status["uplink"], "waiting": status["store"]["backlog_pages"]}

    def until(self, condition):
        until(lambda: condition(self.uplink()), 60, self.uplink)

    def landed(self):
        """Pages in the landing, by stream."""
        found = Counter()
        for (_, stream, _), pages in by_partition(self.landing).items():
            found[stream] += len(pages)
        return found

    def nothing_lands(self, waiting):
        """After two more reports the same number of pages waits, although the link was open to
        reports."""
        before = self.landed()
        until(lambda: self.landed()[TELEMETRY] >= before[TELEMETRY] + 2, 60, self.uplink)
        after = self.landed()
        assert self.uplink()["waiting"] == waiting
        assert {**after, TELEMETRY: 0} == {**before, TELEMETRY: 0}


def test_pages_go_when_the_job_s_windows_and_the_centre_s_allow_it_or_somebody_asks(
    tmp_path, monkeypatch
):
    patient = changed(renamed("patient", "q", "others"), promises={**QUICK, "upload_within": "1h"})
    prompt = changed(renamed("prompt", "r", "rows"), promises=QUICK)
    landing = tmp_path / "landing"
    with (
        collecting(landing) as collector,
        Running(tmp_path, collector.url, monkeypatch, patient, prompt, interval_s=1.0) as running,
    ):
        centre = Centre(landing, running)
        with running.producer("q") as q, running.producer("r") as r:

            def send(producer):
                producer.send(batch([1]))
                producer.flush(120)

            centre.wants({"from": at(6 * HOUR_S), "until": at(7 * HOUR_S)})
            send(q)  # the job's own window holds it in the daemon
            centre.until(lambda u: (u["held"]["pages"], u["waiting"]) == (1, 1))
            send(r)  # must not wait, so both go to the uplink, where the centre's window holds them
            centre.until(lambda u: (u["held"]["pages"], u["waiting"]) == (0, 2))
            centre.nothing_lands(2)
            centre.wants()
            centre.until(lambda u: u["waiting"] == 0)

            send(q)  # the centre's window is open, the job's is not
            centre.until(lambda u: u["held"]["pages"] == 1)
            centre.nothing_lands(1)
            centre.wants({"from": at(6 * HOUR_S), "until": at(7 * HOUR_S)})
            running.daemon.parts.event_loop.call(running.daemon.parts.uplink.retry)
            centre.until(lambda u: u["waiting"] == 0)

            send(r)  # the requested retry is over: the windows apply again
            centre.until(lambda u: u["waiting"] == 1)
            centre.nothing_lands(1)
        assert (centre.landed()["others"], centre.landed()["rows"]) == (2, 1)
