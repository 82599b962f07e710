"""The telemetry schedule: reports are sent with beats, by a timer only if none comes."""

import pytest

from edged.centre_link.reporter import Reporter
from edged.config.sections import TelemetrySection
from edged.daemon.daemon import Daemon
from edged.daemon.settings import DaemonSettings
from edged.errors import JobError
from edged.events.log import LineLog
from edged.job.plan import parse_job
from tests.beat.support import changed, copy_job

SECOND = 1_000_000


class Plant:
    """A settable clock, a recording uplink, an event loop that keeps the timer's handler."""

    def __init__(self, **settings):
        self.now_us, self.reports, self.unsettled = 10 * SECOND, [], None
        self.reporter = Reporter(
            TelemetrySection(**settings), lambda interval_s: [interval_s], self.report,
            self.settled, self, self,
        )  # fmt: skip
        self.armed = None
        self.reporter._timer.close()
        self.reporter._timer = self
        self.reporter.set(TelemetrySection(**settings))

    def monotonic_us(self):
        return self.now_us

    def add_control(self, _, handler):
        self.fire = handler

    def report(self, values, bytes_max, first):
        self.reports.append((self.now_us, values, bytes_max, first))

    def settled(self, then):
        if self.unsettled is None:
            then()
        else:
            self.unsettled.append(then)

    def arm(self, at_us):
        self.armed = at_us

    def disarm(self):
        self.armed = None

    def pass_until(self, end_us, beat_us=None):
        """Advance time, with a beat each `beat_us`; returns how often the timer fired."""
        fired, beat = 0, self.now_us + (beat_us or 10**15)
        while True:
            nexts = [t for t in (self.armed, beat) if t is not None]
            self.now_us = max(self.now_us, min(nexts))
            if self.now_us > end_us:
                return fired
            if beat <= self.now_us:
                beat += beat_us
                self.reporter.on_beat()
            else:
                fired += 1
                self.fire()


@pytest.mark.parametrize("beat_us", [50_000, SECOND, 2 * SECOND])
def test_a_busy_device_is_never_woken_for_a_report_and_reports_once_an_interval(beat_us):
    plant = Plant(interval_s=10.0, bytes_max=2000, first=True)
    plant.pass_until(plant.now_us + 2 * SECOND, 50_000)
    began = plant.now_us
    plant.reports.clear()
    assert plant.pass_until(began + 600 * SECOND, beat_us) == 0
    assert 600 / (10 + beat_us / SECOND) - 1 <= len(plant.reports) <= 60
    assert plant.reports[0][1:] == ([10.0], 2000, True)


def test_a_device_at_rest_is_woken_once_in_five_quarters_of_the_interval():
    plant = Plant(interval_s=10.0)
    fired = plant.pass_until(plant.now_us + 1000 * SECOND)
    assert fired == len(plant.reports) and 79 <= fired <= 81


def test_without_an_interval_there_is_no_timer_and_a_reload_may_start_one():
    plant = Plant(interval_s=0.0)
    assert plant.armed is None and plant.pass_until(plant.now_us + 10**9, SECOND) == 0
    plant.reporter.report_soon()
    assert not plant.reports and plant.armed is None
    plant.reporter.set(TelemetrySection(interval_s=10.0))
    plant.pass_until(plant.now_us + 60 * SECOND)
    assert plant.reports


def test_a_report_that_no_beat_takes_along_tells_of_all_acks_that_have_come():
    plant = Plant(interval_s=10.0)
    plant.unsettled = []
    plant.now_us = plant.armed
    plant.fire()
    assert not plant.reports and plant.armed is None
    (then,) = plant.unsettled
    then()
    assert len(plant.reports) == 1 and plant.armed > plant.now_us


@pytest.mark.parametrize("promised", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_reports_go_ahead_of_data_where_the_settings_or_a_job_say_so(
    tmp_path, monkeypatch, asked, promised
):
    """The resulting order of requests is tested in tests/uplink/test_sender.py."""
    job = parse_job(changed(copy_job(), promises={"telemetry_first": promised}))
    telemetry = TelemetrySection(first=asked)
    settings = DaemonSettings(
        tmp_path, "dev", 1, uplink_url="http://127.0.0.1:9", telemetry=telemetry
    )  # fmt: skip
    daemon = Daemon(settings, [job], LineLog(lambda *_: None))
    told = []

    def report(values, size, first):
        told.append(first)
        daemon.parts.event_loop.wake()

    monkeypatch.setattr(daemon._uplink, "report", report)
    # The report waits for the acks of the commit thread, which the event loop delivers.
    daemon.centre.reporter._on_timer()
    daemon.parts.event_loop.until(daemon.parts.clock.monotonic_us() + 20 * SECOND, lambda: told)
    daemon.close()
    assert told == [asked or promised]


def test_a_job_that_says_neither_yes_nor_no_is_refused():
    with pytest.raises(JobError, match=r"promises\.telemetry_first"):
        parse_job(changed(copy_job(), promises={"telemetry_first": "yes"}))
