"""Telemetry at the centre: numbered with gaps, landed once, exported while it is fresh."""

import asyncio
import json
import os
import random
import subprocess
import sys
import threading
import time
from contextlib import closing

import httpx
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from edged.central import fleet, report_queue
from edged.central.cli_collect import command as collect
from edged.central.collector import Collector as CollectorApp
from edged.central.fleet import Fleet
from edged.central.group_commit import GroupCommitter
from edged.central.report_decoding import REPORT_BYTES_MAX, last_report
from edged.data.schema import Schema
from edged.errors import PageError
from edged.pages.format import parse_header, verify
from edged.pages.read import read_page
from edged.uplink import telemetry
from tests.central.support import EPOCH, Collector, Device, by_partition, collecting, make_page
from tests.central.test_landing import open_landing

NAME = "turbine-7"
SCHEMA = Schema.from_json(telemetry.SCHEMA)
NUMBERS = {"timestamp": 1_700_000_000_000_000, "int64": 7, "float64": 1.5, "bool": 1, "string": "x"}


def values(**told):
    """A report's values: for each column a value of its type, or the given one."""
    return [told.get(name, NUMBERS[kind]) for name, kind, _ in telemetry.COLUMNS]


def report(count, start=1, device=NAME, **told):
    return telemetry.page(device, EPOCH, telemetry.number(start, count), values(**told))


def samples(address):
    text = httpx.get(f"http://{address}/metrics").text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, "no label set twice"
            found[key] = sample.value
    return found


def of(found, name, **labels):
    wanted = labels.items()
    return [v for (n, have), v in found.items() if n == name and wanted <= dict(have).items()]


def until(condition, timeout_s=120.0):
    end = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def edged(*words):
    return subprocess.run(
        [sys.executable, "-m", "edged", *map(str, words)], capture_output=True, text=True
    )


KINDS = {
    "timestamp": st.integers(-(2**62), 2**62),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "string": st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=100),
}


@given(st.tuples(*(
    st.none() | KINDS[kind] if null else KINDS[kind] for _, kind, null in telemetry.COLUMNS
)), st.integers(1, 2**20), st.integers(1, 2**40 - 1))  # fmt: skip
def test_a_page_made_by_hand_is_what_the_ordinary_reader_reads(row, session, count):
    page = telemetry.page(NAME, EPOCH, telemetry.number(session, count), row)
    header = verify(page)
    assert (header.device, header.stream, header.version) == (NAME, telemetry.STREAM, 4)
    assert header.seq >> 40 == session and header.seq & (2**40 - 1) == count
    batch = read_page(page, SCHEMA)
    for (name, kind, _), value in zip(telemetry.COLUMNS, row, strict=True):
        column = batch.column(name)
        read = column.cast("int64")[0].as_py() if kind == "timestamp" else column[0].as_py()
        assert read == value
    decoded = last_report(parse_header(page), memoryview(page))
    assert decoded == {name: v for (name, _, _), v in zip(telemetry.COLUMNS, row, strict=True)}


@given(st.integers(224, len(report(1)) - 1), st.integers(0, 255), st.integers(1, 60))
def test_a_report_with_any_byte_changed_is_a_report_or_a_page_error(at, byte, cut):
    page = bytearray(report(1))
    header = parse_header(bytes(page))
    page[at] = byte
    for changed in (page, page[:-cut]):
        try:
            row = last_report(header, memoryview(changed))
        except PageError:
            continue
        assert set(row) == {name for name, _, _ in telemetry.COLUMNS}


def test_the_queue_of_reports_is_bounded_and_a_stop_does_not_wait_for_it(monkeypatch):
    monkeypatch.setattr(report_queue, "WAITING_MAX", 3)
    began, go, seen = threading.Event(), threading.Event(), []

    def on_contact(device, report, now_us):
        seen.append((device, report, now_us))
        began.set()
        go.wait(120)

    queue = report_queue.ReportQueue(on_contact)
    queue.add("first", None, 0)
    assert began.wait(120)
    for number in range(5):
        queue.add(f"d{number}", ("header", number), number)
    assert queue.dropped == 2
    queue.add("d1", None, 9)
    assert queue.dropped == 2, "a device that waits already needs no room"
    queue.close()
    assert seen == [("first", None, 0)], "the stop went on beside a contact that hangs"
    go.set()
    other = report_queue.ReportQueue(on_contact)
    other.add("d1", ("header", 1), 1)
    other.add("d1", None, 9)
    until(lambda: seen[-1][2] == 9)
    other.close()
    assert ("d1", ("header", 1)) in [entry[:2] for entry in seen]


def test_a_report_that_is_too_large_loses_its_jobs_then_all():
    row = values(jobs=json.dumps({"j" * 60: {}}) * 100)
    whole = telemetry.page(NAME, EPOCH, 1, row)
    small = telemetry.page(NAME, EPOCH, 1, row, 2000)
    assert len(whole) > 2000 >= len(small)
    assert read_page(small, SCHEMA).column("jobs").to_pylist() == ["{}"]
    assert telemetry.page(NAME, EPOCH, 1, row, 300) == b""


@given(st.lists(st.tuples(st.integers(1, 2**24 - 1), st.integers(1, 2**40 - 1)), min_size=2))
def test_numbers_rise_with_the_session_whatever_was_counted_in_it(pairs):
    numbers = [telemetry.number(*pair) for pair in sorted(pairs)]
    assert numbers == sorted(numbers) and max(numbers) < 2**64


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    landing = tmp_path_factory.mktemp("fleet") / "landing"
    with collecting(landing, "--metrics", "127.0.0.1:0") as collector:
        yield collector, landing


def sender(collector, name, session=(1, 7)):
    device = Device(collector, name, session=session)
    assert device.register(telemetry.STREAM, telemetry.VERSION, telemetry.SCHEMA).status_code == 204
    return device


def test_gaps_land_late_ones_do_not_and_nothing_lands_twice(shared):
    collector, landing = shared
    with sender(collector, "gaps") as device:
        pages = {n: report(n, device="gaps") for n in (3, 9, 5, 12)}
        top = 0
        for n in (3, 9, 5, 9, 12, 3):
            top = max(top, n)
            reply = device.send(pages[n])
            assert reply.status_code == 200, reply.text
            assert reply.json()["acked"] == [[telemetry.STREAM, 0, telemetry.number(1, top)]]
    landed = by_partition(landing)["gaps", telemetry.STREAM, 0]
    assert landed == {telemetry.number(1, n): pages[n] for n in (3, 9, 12)}


def test_other_streams_may_still_not_have_gaps(shared):
    with sender(shared[0], "strict") as device:
        device.register()
        reply = device.send(make_page(2, device="strict"))
        assert (reply.status_code, reply.json()["problem"]) == (409, "gap")


def test_the_streams_columns_are_nobodys_to_choose(shared):
    with Device(shared[0], "liar") as device:
        other = '[{"name":"k","type":"int32","nullable":false}]'
        assert device.register(telemetry.STREAM, 1, other).status_code == 409
        assert device.register("some.thing", 1, other).status_code == 422


def test_over_kills_of_collectors_and_restarts_of_the_device_each_report_lands_at_most_once(
    tmp_path,
):
    """And every acknowledged one: the sender is naive and keeps no state."""
    rng, landing, acked, sent = random.Random(5), tmp_path / "landing", set(), {}
    for session in range(1, 5):
        collector = Collector(landing)
        with sender(collector, NAME, (session, session)) as device:
            for count in range(1, rng.randrange(3, 8)):
                page = report(count, session)
                sent[telemetry.number(session, count)] = page
                tries = rng.choice((1, 1, 2))
                for _ in range(tries):
                    ((_, _, seq),) = device.send(page).json()["acked"]
                    acked.add(seq)
        collector.kill()
    with collecting(landing) as collector, sender(collector, NAME, (5, 5)) as device:
        assert device.send(report(1, 4)).json()["acked"], "an old one, said to be there"
    landed = by_partition(landing)[NAME, telemetry.STREAM, 0]
    assert landed == sent and acked == set(sent) and list(landed) == sorted(landed)


def test_durable_reports_that_were_not_visible_yet_become_so_whatever_gaps_they_leave(tmp_path):
    landing = tmp_path / "landing"
    with collecting(landing) as collector, sender(collector, NAME) as device:
        device.send(report(1))
    (pages,) = (landing / "segments").glob("*.pages")
    with pages.open("ab") as file:
        file.write(report(4) + report(9))
    with collecting(landing):
        pass
    assert list(by_partition(landing)[NAME, telemetry.STREAM, 0]) == [
        telemetry.number(1, n) for n in (1, 4, 9)
    ]


def test_the_fleet_is_told_to_prometheus_and_a_silent_device_keeps_no_value(shared):
    collector, landing = shared
    address = collector.metrics
    told = {
        "interval_s": 1.0, "watts": 4.25, "joules": 99.5, "energy_source": "simulated",
        "backlog_bytes": 321, "session": 3, "latency_s": None, "desired_problem": "no",
        "jobs": json.dumps({"a": {"state": "running"}, "b": {"state": "paused"}}),
    }  # fmt: skip
    with sender(collector, "told") as device, sender(collector, "other") as other:
        device.send(report(1, device="told", **told))
        other.send(report(1, device="other", interval_s=1e6))
        found = until(lambda: (f := samples(address)) and of(f, "edged_device_up", device="told")
                      and f)  # fmt: skip
    assert of(found, "edged_device_power_watts", device="told", source="simulated") == [4.25]
    assert of(found, "edged_device_energy_joules_total", device="told") == [99.5]
    assert of(found, "edged_device_backlog_bytes", device="told") == [321]
    assert of(found, "edged_device_restarts_total", device="told") == [2]
    assert of(found, "edged_device_latency_seconds", device="told") == [], "a gap, not a zero"
    assert of(found, "edged_device_desired_refused", device="told") == [1]
    assert of(found, "edged_device_jobs", device="told", state="paused") == [1]
    (seen,) = of(found, "edged_device_last_seen_timestamp_seconds", device="told")
    assert abs(seen - time.time()) < 60
    path = landing / "fleet" / "told.json"
    past = time.time() - 11  # its last contact is too old
    os.utime(path, (past, past))
    found = until(lambda: (f := samples(address))
                  and of(f, "edged_device_up", device="told") == [0] and f)  # fmt: skip
    names = {name for name, have in found if dict(have).get("device") == "told"}
    assert names == {
        *("edged_device_up", "edged_device_last_seen_timestamp_seconds"),
        "edged_device_upload_open",
    }
    assert of(found, "edged_device_upload_open", device="told") == [1], "it names no windows"
    assert of(found, "edged_device_backlog_bytes", device="other") == [7]


def test_a_device_of_an_earlier_version_is_told_without_what_it_does_not_know(shared, monkeypatch):
    collector = shared[0]
    with Device(collector, "elder") as device:
        assert device.register(telemetry.STREAM, 1, telemetry.SCHEMAS[1]).status_code == 204
        with monkeypatch.context() as then:
            then.setattr(telemetry, "VERSION", 1)
            then.setattr(telemetry, "COLUMNS", telemetry.COLUMNS[:36])
            page = report(1, device="elder", backlog_bytes=321, interval_s=60.0)
        assert parse_header(page).version == 1
        assert device.send(page).status_code == 200
    with sender(collector, "younger") as device:
        device.send(report(1, device="younger", rails_silent=2, budget_forecast_joules=-3.5))
        found = until(lambda: (f := samples(collector.metrics))
                      and of(f, "edged_device_rails_silent", device="younger") and f)  # fmt: skip
    assert of(found, "edged_device_backlog_bytes", device="elder") == [321]
    assert of(found, "edged_device_rails_silent", device="elder") == []
    assert of(found, "edged_device_rails_silent", device="younger") == [2]
    assert of(found, "edged_device_energy_budget_forecast_joules", device="younger") == [-3.5]


@pytest.mark.parametrize(
    "windows, hour, is_open",
    [
        ("[[79200,21600]]", 23, True), ("[[79200,21600]]", 12, False), ("[]", 12, True),
        ("[[79200]]", 12, True), ("x", 12, True), ("[[null,1]]", 12, True), (None, 12, True),
    ],
)  # fmt: skip
def test_a_device_is_expected_within_the_upload_windows_of_its_last_report(windows, hour, is_open):
    device = fleet.FleetDevice("d", 0, {"upload_windows": windows})
    assert device.upload_open(hour * 3_600_000_000) == is_open
    assert fleet.FleetDevice("d", 0, None).upload_open(0)


def test_devices_for_which_there_is_no_room_are_counted(tmp_path):
    with closing(open_landing(tmp_path)) as landing:
        known = Fleet(tmp_path, 3)
        for n in range(5):
            known.on_contact(f"d{n}", None, n)
        loop = asyncio.new_event_loop()
        with closing(loop):
            collector = loop.run_until_complete(made(landing, known))
            told = {f.name: f.samples for f in collector.exposition().collect()}
            collector.close()
    assert {s.labels["device"] for s in told["edged_device_up"]} == {"d2", "d3", "d4"}, "the newest"
    assert told["edged_collector_metrics_left_out"][0].value == 2


def test_the_bound_of_devices_is_a_setting_and_pages_of_all_devices_land(tmp_path):
    options = ("--devices-max", "2", "--metrics", "127.0.0.1:0")
    with collecting(tmp_path, *options) as collector:
        for n in range(4):
            with sender(collector, f"d{n}") as device:
                assert device.send(report(1, device=f"d{n}")).status_code == 200

        def seen():
            found = samples(collector.metrics)
            left_out = of(found, "edged_collector_metrics_left_out")
            return left_out == [2] and len(of(found, "edged_device_up")) == 2

        until(seen)
        assert len(httpx.get(collector.url + "/v1/stats").json()["devices"]) == 2
    assert len(by_partition(tmp_path)) == 4


@pytest.mark.parametrize("number", ["0", "1048577", "many"])
def test_a_bound_of_devices_that_cannot_be_is_refused(tmp_path, number):
    asked = ["--landing", str(tmp_path), "--devices-max", number]
    done = CliRunner().invoke(collect, asked)
    assert done.exit_code == 2 and "--devices-max" in done.output


async def made(landing, known):
    return CollectorApp(
        landing,
        None,
        lambda failed, _: GroupCommitter(landing, failed),
        body_bytes_max=1 << 20,
        fleet=known,
    )


def test_what_a_device_says_cannot_break_the_scrape(shared):
    collector = shared[0]
    evil = {
        "interval_s": float("inf"), "watts": float("nan"), "energy_source": 'x"} 1\n# evil',
        "version": 'a"\n' * 200, "jobs": "[" * 5000, "state": "\0", "backlog_age_s": float("-inf"),
    }  # fmt: skip
    with sender(collector, "evil") as device:
        assert device.send(report(1, device="evil", **evil)).status_code == 200
        found = until(lambda: (f := samples(collector.metrics))
                      and of(f, "edged_device_info", device="evil") and f)  # fmt: skip
    assert of(found, "edged_device_power_watts", device="evil") == []
    assert of(found, "edged_device_backlog_age_seconds", device="evil") == []


def test_a_report_that_is_too_large_lands_and_is_not_kept_in_the_fleet(tmp_path):
    kept_of = Fleet(tmp_path)
    for at_us, (size, kept) in enumerate(((1000, True), (REPORT_BYTES_MAX, False))):
        page = report(1, device="evil", jobs="x" * size)
        kept_of.on_contact("evil", (parse_header(page), memoryview(page)), at_us)
        assert (kept_of.device("evil").row is not None) == kept
        assert (tmp_path / "fleet" / "evil.json").stat().st_size < REPORT_BYTES_MAX


def test_the_collectors_own_figures_are_those_of_what_was_sent(tmp_path):
    landing = tmp_path / "landing"
    damaged = bytearray(make_page(3))
    damaged[-1] ^= 1
    metrics = ("--metrics", "127.0.0.1:0")
    with collecting(landing, *metrics) as collector, sender(collector, NAME) as device:
        device.register()
        for pages in ([make_page(1), make_page(2)], [make_page(2)], [make_page(9)], [damaged]):
            device.send(*map(bytes, pages))
        found = samples(collector.metrics)
    assert of(found, "edged_collector_pages_total") == [2]
    assert of(found, "edged_collector_page_bytes_total") == [len(make_page(1) + make_page(2))]
    assert of(found, "edged_collector_duplicates_total") == [1]
    assert of(found, "edged_collector_page_problems_total", problem="damaged") == [1]
    assert of(found, "edged_collector_page_problems_total", problem="gap") == [1]
    codes = {code: of(found, "edged_collector_requests_total", code=code) for code in
             ("200", "204", "409", "422")}  # fmt: skip
    assert codes == {"200": [2], "204": [2], "409": [1], "422": [1]}
    assert of(found, "edged_collector_commit_seconds_count") == [4]
    assert of(found, "edged_collector_fsync_seconds_count") == [1]


def test_two_collectors_of_one_landing_tell_of_the_same_fleet(shared):
    first, landing = shared
    with collecting(landing, "--metrics", "127.0.0.1:0") as second:
        with sender(first, "roaming", (1, 7)) as device:
            device.send(report(1, device="roaming", rows=1, interval_s=60.0))
        with sender(second, "roaming", (1, 7)) as device:
            device.send(report(2, device="roaming", rows=2, interval_s=60.0))
        for collector in (first, second):
            until(lambda c=collector: of(samples(c.metrics), "edged_device_rows_total",
                                         device="roaming") == [2])  # fmt: skip


def test_devices_are_listed_with_what_is_wanted_of_them_and_why_not(shared, tmp_path):
    collector, landing = shared
    wanted = tmp_path / "wanted.toml"
    wanted.write_text('windows = [{ from = "22:00", until = "06:00" }]\n')
    done = edged("central", "desired", "listed", wanted, "--landing", landing)
    assert done.returncode == 0, done.stderr
    with sender(collector, "listed") as device:
        reply = device.send(report(1, device="listed", desired_version=0, desired_problem=""))
        desired = reply.json()["desired"]
        assert desired["version"] == 1
        assert desired["document"]["windows"] == [{"from": "22:00", "until": "06:00"}]
        device.http.headers["X-Edged-Desired"] = "1"
        late = report(2, device="listed", interval_s=60.0, desired_version=1, applied_version=0,
                      desired_problem="policy: this device watches no board")  # fmt: skip
        assert device.send(late).json()["desired"] == {"version": 1}
    until(lambda: (d := Fleet(landing).device("listed")) and d.row["desired_problem"])
    done = edged("central", "devices", "--landing", landing, "--json")
    (row,) = [r for r in map(json.loads, done.stdout.splitlines()) if r["device"] == "listed"]
    assert (row["up"], row["desired"], row["applied"]) == (True, 1, 0)
    assert row["problem"] == "policy: this device watches no board"
    assert "watches no board" in edged("central", "devices", "--landing", landing).stdout
    done = edged("central", "desired", "listed", "--clear", "--landing", landing, "--json")
    told = json.loads(done.stdout)
    assert (told["version"], told["document"]) == (2, None)


def test_a_bad_document_does_not_leave_the_centre(shared, tmp_path):
    landing, wanted = shared[1], tmp_path / "wanted.json"
    bad = [{"jobs": [{"name": "x"}]}, {"jobz": []}, {"windows": [{"from": "25:00", "until": "1"}]},
           {"policy": "fast"}]  # fmt: skip
    for document in bad:
        wanted.write_text(json.dumps(document))
        done = edged("central", "desired", "careful", wanted, "--landing", landing)
        assert done.returncode == 65, done.stdout
    assert not (landing / "desired" / "careful.json").exists()


def test_a_report_replaces_one_of_any_size_and_half_a_write_is_read_again(tmp_path, monkeypatch):
    known = Fleet(tmp_path)
    for at_us, size in enumerate((10, 20, 2 * fleet.FILE_BYTES, 30, 40)):
        page = report(1 + at_us, jobs="x" * size)
        known.on_contact(NAME, (parse_header(page), memoryview(page)), at_us)
        assert Fleet(tmp_path).device(NAME).row["jobs"] == "x" * size
    file = tmp_path / "fleet" / f"{NAME}.json"
    assert file.stat().st_size == fleet.FILE_BYTES and file.stat().st_mtime_ns == 4000
    whole, reads = file.read_bytes(), []

    def torn(path):
        reads.append(path)
        return whole if len(reads) == 3 else whole[:100] + b"?" * (len(whole) - 100)

    monkeypatch.setattr("pathlib.Path.read_bytes", torn)
    assert Fleet(tmp_path).device(NAME).row["jobs"] == "x" * 40 and len(reads) == 3
