"""A real Prometheus scrapes a running daemon: metrics, rules, dashboards, alerts and their causes.

Every alert has its cause and its silence in promtool's tests (deploy/prometheus/tests), and fires
here on what it is about: real daemons, collectors and Spark, in one run of Prometheus whose rules
have short times (`plant.hurried`).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import re
import socket
import subprocess
import sys
import threading
from copy import deepcopy
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.metrics import exposition_of
from edged.client import Producer
from edged.energy.settings import JOURNAL
from edged.errors import EdgedError
from edged.metrics.central import FLEET
from edged.metrics.device import DEVICE
from edged.platform.processes import free_port
from governors.actuators.journal import LimitJournal
from governors.simulated.kernel import SimulatedSysfs, open_root
from tests.central.support import make_page
from tests.energy.common import POLICY0
from tests.metrics.plant import (
    DEPLOY,
    PROMETHEUS,
    SENT,
    document,
    erring,
    hasty,
    listening,
    rows,
    wide,
)

DASHBOARDS = ["fleet", "device", "energy"]
pytestmark = pytest.mark.xdist_group("prometheus")


def families(plant):
    return {f.name: f for f in text_string_to_metric_families(plant.exposed())}


def read(dashboard):
    return json.loads((DEPLOY / "grafana" / "dashboards" / f"{dashboard}.json").read_text())


def run(*words, text=None):
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, input=text)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def fill(plant):
    """Send rows that no compression makes smaller, until the plant has seen enough; so many without
    an ack that some are still unread when the store is full."""
    while not plant.full.is_set():  # on a busy machine a producer may give up; start another
        with (
            contextlib.suppress(EdgedError, TimeoutError),  # the last batches are never accepted
            plant.producer("full", unacked_bytes_max=64 << 20, timeout_s=5.0) as producer,
        ):
            while not plant.full.is_set():
                with contextlib.suppress(TimeoutError):
                    producer.send(rows(4000))


@contextlib.contextmanager
def capped(plant):
    """A power cap that is never reached, beside the daemon's budget."""
    plant.ask("governor", policy="power_cap", settings={"watts": 1000}, job="watched")
    try:
        yield
    finally:
        plant.ask("governor", policy="none", job="watched")


class TestRules:
    def test_promtool_finds_config_and_rules_well(self):
        rules = [str(path) for path in PROMETHEUS.glob("*.rules.yml")]
        assert "SUCCESS" in run("promtool", "check", "rules", *rules)
        run("promtool", "check", "config", str(PROMETHEUS / "prometheus.yml"))

    def test_every_alert_fires_on_its_cause_and_on_nothing_else(self):
        tests = PROMETHEUS / "tests" / "alerts.test.yml"
        names = re.findall(r"alert: (\w+)", (PROMETHEUS / "alerts.rules.yml").read_text())
        untested = [name for name in names if f'"{name}"' not in tests.read_text()]
        assert len(names) > 20 and not untested
        run("promtool", "test", "rules", str(tests))


class TestScraping:
    def test_promtool_finds_the_metrics_well(self, plant):
        run("promtool", "check", "metrics", text=plant.exposed())

    def test_a_device_with_everything_tells_every_metric_of_the_table(self, plant):
        seen = set()

        def missing():
            seen.update(families(plant))
            return {name for name in DEVICE if name.removesuffix("_total") not in seen}

        budget = {"joules_per_day": 1e9}
        with capped(plant):
            plant.until(lambda: missing() <= {"edged_temperature_limit_celsius"})
            plant.ask("governor", policy="cool")  # the one that has a limit of its own
            plant.until(lambda: not missing())
            plant.ask("governor", policy="energy_budget", settings=budget)

    def test_the_collector_tells_every_metric_of_a_device_that_reports_to_it(self, plant):
        plant.until(lambda: all(plant.query(f"count({name})") for name in FLEET))

    def test_counters_are_the_daemon_s_own_and_a_second_old_at_most(self, plant):
        def rows():
            return families(plant)["edged_rows"].samples[0].value

        first, told = rows(), plant.ask("status")["rows"]
        assert 0 < first <= told
        plant.until(lambda: rows() >= told, 2.0)

    def test_energy_says_that_it_is_simulated(self, plant):
        told = [s for f in families(plant).values() for s in f.samples if "source" in s.labels]
        assert len(told) > 5 and {s.labels["source"] for s in told} == {"simulated"}
        told = [s for f in families(plant).values() for s in f.samples if "simulated" in s.labels]
        assert {s.labels["simulated"] for s in told} == {"true"}
        assert {s.name for s in told} >= {
            "edged_board_info", "edged_daemon_info", "edged_policy_info", "edged_clock_hertz",
            "edged_clock_seconds_total", "edged_idle_state_seconds_total",
        }  # fmt: skip

    def test_a_thousand_jobs_stay_within_the_bounds_and_are_counted(self, plant):
        snapshot = plant.ask("status")
        job = snapshot["jobs"]["watched"]
        snapshot["jobs"] = {f"job{n}": deepcopy(job) for n in range(1000)}
        snapshot["sources"] = [{**s, "address": f"{s['address']}{n}"}
                               for s in snapshot["sources"] for n in range(500)]  # fmt: skip
        text = exposition_of(snapshot).encode()[0].decode()
        series: dict[str, set] = {}
        for family in text_string_to_metric_families(text):
            for s in family.samples:
                labels = tuple(sorted((k, v) for k, v in s.labels.items() if k != "le"))
                series.setdefault(family.name, set()).add(labels)
        for name, row in DEVICE.items():
            assert len(series.get(name.removesuffix("_total"), ())) <= row.bound, name
        (left_out,) = (float(v) for v in re.findall(r"^edged_metrics_left_out (\S+)", text, re.M))
        assert left_out > 10_000 and len(text) < 3_000_000

    def test_only_reading_of_metrics_is_served(self, plant):
        url = f"http://127.0.0.1:{plant.metrics}"
        assert plant.http.get(f"{url}/v1/device").status_code == 404
        assert plant.http.post(f"{url}/metrics").status_code == 405
        assert plant.http.head(f"{url}/metrics").content == b""
        openmetrics = plant.http.get(
            f"{url}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
        )
        assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
        assert openmetrics.text.endswith("# EOF\n")

    def test_a_scraper_that_does_not_read_keeps_nobody_waiting(self, plant):
        with socket.create_connection(("127.0.0.1", plant.metrics)) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 200)
            assert "edged_up 1.0" in plant.exposed()


class TestDashboards:
    def test_the_files_are_what_the_script_writes(self):
        made = run(sys.executable, str(DEPLOY / "grafana" / "make.py"), "--check")
        assert made.count(".json") == 3

    @pytest.mark.parametrize("name", DASHBOARDS)
    def test_panels_lie_side_by_side_and_ask_the_chosen_prometheus(self, name):
        dashboard = read(name)
        names = {f"${v['name']}" for v in dashboard["templating"]["list"]}
        taken = set()
        for panel in dashboard["panels"]:
            at = panel["gridPos"]
            cells = set(itertools.product(range(at["x"], at["x"] + at["w"]),
                                          range(at["y"], at["y"] + at["h"])))  # fmt: skip
            assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
            taken |= cells
            for target in panel["targets"]:
                assert target["datasource"]["uid"] == "${datasource}"
                used = set(re.findall(r"\$[a-z_]+", target["expr"]))
                assert used <= names | {"$__rate_interval", "$__range"}
        assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])

    @pytest.mark.parametrize("name", DASHBOARDS)
    def test_every_expression_returns_data_with_the_labels_of_its_legend(self, plant, name):
        targets = [target for panel in read(name)["panels"] for target in panel["targets"]]
        waiting = {t["expr"]: set(re.findall(r"{{(\w+)}}", t.get("legendFormat", "")))
                   for t in targets}  # fmt: skip
        assert len(waiting) >= 14
        interval = {"$device": "turbine-7", "$__rate_interval": "8s", "$__range": "1m"}

        def answered():
            plant.ask("job.pause", name="watched")  # something happens: an event
            plant.ask("job.resume", name="watched")
            for expression in list(waiting):
                asked = expression
                for variable, value in interval.items():
                    asked = asked.replace(variable, value)
                assert "$" not in asked.replace('"$1"', "")  # that one is Prometheus'
                series = plant.query(asked)
                if series and waiting[expression] <= set().union(*(s["metric"] for s in series)):
                    del waiting[expression]
            return not waiting

        try:
            with capped(plant):
                plant.until(answered, step_s=1.0)
        except AssertionError:
            pytest.fail(f"no data, or not with these labels: {waiting}")

    def test_a_device_that_only_reports_to_a_collector_has_its_figures_there_too(self, plant):
        reported = {
            "device": ["State", "Jobs running", "Rows taken", "Power", "Backlog", "Restarts",
                       "Rows in and out", "Latency, 99th percentile, and its promise",
                       "Oldest page"],
            "energy": ["Power", "Mean power", "Per million rows", "In the time shown", "Policy",
                       "Budget at its end", "Limits taken over"],
        }  # fmt: skip
        waiting = [(name, panel) for name, titles in reported.items()
                   for panel in read(name)["panels"] if panel["title"] in titles]  # fmt: skip
        assert len(waiting) >= 16
        interval = {"$device": "remote", "$__rate_interval": "8s", "$__range": "1m"}
        counts = itertools.count(1)

        def answered():
            count = next(counts)
            plant.report(
                "remote", count, rows=10_000 * count, joules=5.0 * count,
                budget_forecast_joules=5.0,
            )  # fmt: skip
            for name, panel in list(waiting):
                for asked in (target["expr"] for target in panel["targets"]):
                    for variable, value in interval.items():
                        asked = asked.replace(variable, value)
                    if plant.query(asked):
                        waiting.remove((name, panel))
                        break
            return not waiting

        try:
            plant.until(answered, step_s=1.0)
        except AssertionError:
            pytest.fail(f"no data: {[(name, panel['title']) for name, panel in waiting]}")


class TestAlerts:
    """In this order: the last ones take the plant apart."""

    def test_nothing_fires_while_all_is_well(self, plant):
        # a machine that others use may break a promise: that silence is promtool's to hold
        plant.until(lambda: plant.get("rules")["groups"])
        names = {alert["labels"]["alertname"] for alert in plant.firing()}
        assert names <= {"EdgedLatencyOverPromise", "EdgedFleetLatencyOverPromise"}

    def test_a_promise_that_cannot_be_kept(self, plant, fires):
        plant.ask("job.put", document=hasty())
        plant.until(
            lambda: "hasty" in str(plant.query('ALERTS{alertname="EdgedLatencyOverPromise"}'))
        )
        fires("EdgedFleetLatencyOverPromise", device="turbine-7")
        plant.ask("job.delete", name="hasty")

    def test_more_streams_than_there_is_room_for(self, plant, fires):
        plant.ask("job.put", document=wide())
        fires("EdgedMetricsLeftOut")
        plant.ask("job.delete", name="wide")

    def test_a_stream_that_has_become_silent(self, plant, fires):
        port = free_port()
        plant.ask("job.put", document=listening(port, silent_after="1s"))
        with Producer(f"127.0.0.1:{port}", "heard", SENT, producer="shy") as producer:
            producer.send(rows(10))
            producer.flush()
            fires("EdgedNoInput", job_name="listening", stream="heard")
        plant.ask("job.delete", name="listening")

    def test_an_expression_that_fails(self, plant, fires):
        job = plant.path / "erring.json"
        job.write_text(json.dumps(erring()))
        run(sys.executable, "-m", "edged", "jobs", "put", str(job),
            "--api", str(plant.path / "api.sock"))  # fmt: skip
        fires("EdgedExpressionErrors", job_name="erring", operator="scaled")
        plant.ask("job.delete", name="erring")

    def test_rows_behind_the_watermark(self, plant, fires):
        with plant.producer("late") as producer:
            for hours in (0, -3):
                producer.send(rows(100, hours))
                producer.flush()
        fires("EdgedRowsDropped")

    def test_a_clock_that_somebody_else_changes(self, plant, fires):
        plant.ask("governor", policy="fixed", settings={"cpu_mhz": 960})
        sysfs = open_root(plant.store / "board")
        limit = f"{POLICY0}/scaling_max_freq"
        plant.until(lambda: sysfs.peek_int(limit) == 960_000)
        plant.until(lambda: plant.query("edged_clock_max_hertz == 960e6"))
        sysfs.write(limit, "1190400")
        fires("EdgedClockTakenOver", device="turbine-7")

    def test_a_policy_that_another_daemon_keeps_from_the_board(self, plant, fires):
        plant.ask("governor", policy="hands_off")
        journal = LimitJournal(plant.store / JOURNAL.name)
        try:
            plant.ask("governor", policy="race_to_idle")
            fires("EdgedPolicyFellBack")
        finally:
            journal.release()

    def test_a_meter_that_is_lost(self, plant, fires):
        sysfs = SimulatedSysfs(plant.store / "board")
        sysfs.set_faults([("*/curr1_input", errno.EIO, "r")])
        fires("EdgedMeterLost", rail="VDD_IN")
        fires("EdgedMeterGaps", rail="VDD_IN")
        plant.until(lambda: plant.query('edged_device_rails_silent{device="turbine-7"} > 0'))
        sysfs.set_faults([])

    def test_what_a_device_that_only_reports_has_lost(self, plant, fires):
        failed = json.dumps({"watched": {"state": "failed", "version": 1, "rows": 1}})
        plant.report("remote", 1 << 20, jobs=failed, rails_silent=1, budget_forecast_joules=-5.0)
        for name in ("EdgedJobFailed", "EdgedMeterLost", "EdgedEnergyBudgetEndangered"):
            fires(name, device="remote")

    def test_a_budget_below_what_the_idle_board_takes(self, plant, fires):
        plant.ask("governor", policy="energy_budget", settings={"joules_per_day": 1000})
        fires("EdgedEnergyBudgetEndangered", device="turbine-7")
        forecast = 'edged_device_energy_budget_forecast_joules{device="turbine-7"}'
        plant.until(lambda: plant.query(f"{forecast} < 0"))
        plant.ask("governor", policy="energy_budget", settings={"joules_per_day": 1})
        fires("EdgedEnergyBudgetExceeded", device="turbine-7")
        plant.ask("governor", policy="power_cap", settings={"watts": 1})
        fires("EdgedPowerCapExceeded", device="turbine-7")
        plant.ask("governor", policy="hands_off")  # one that holds no races back

    def test_a_page_that_arrives_with_other_bytes_and_one_under_a_name_that_was_used(
        self, plant, fires
    ):
        page = bytearray(make_page(1, device="other"))
        page[-1] ^= 1
        with plant.remote("other") as device:
            device.register()
            assert device.send(bytes(page)).status_code == 422
            fires("EdgedPageCorrupt")
            assert device.send(make_page(1, device="other")).status_code == 200
            assert device.send(make_page(1, device="other", salt=1)).status_code == 409
        fires("EdgedUplinkAlarm")

    def test_a_desired_state_that_the_device_refuses(self, plant, fires):
        wanted = plant.path / "desired.json"
        wanted.write_text(
            json.dumps({"jobs": [document(plant.producers, plant.path)]})
        )  # a file's already
        run(sys.executable, "-m", "edged", "central", "desired", "turbine-7", str(wanted),
            "--landing", str(plant.landing))  # fmt: skip
        fires("EdgedDesiredStateRefused", device="turbine-7")
        fires("EdgedDesiredStateNotApplied", device="turbine-7")

    def test_a_daemon_that_dies_again_and_again_while_somebody_takes_its_port(self, plant, fires):
        daemon, port = plant.parts["daemon"], free_port()
        plant.ask("job.put", document=listening(port))
        daemon.kill()
        with socket.create_server(("127.0.0.1", port)):
            for deaths in range(4):
                if deaths:
                    daemon.kill()
                daemon.restart()
                daemon.ready(300)
            fires("EdgedJobFailed", job_name="listening")
        fires("EdgedRestarting", device="turbine-7")

    def test_a_store_that_fills_up_while_the_collector_is_away(self, plant, fires):
        plant.parts["collector"].kill()
        filling = threading.Thread(target=fill, args=(plant,))
        filling.start()  # by themselves the streams take a segment of the log every 40 s
        try:
            fires("EdgedBacklogGrowing")
            fires("EdgedCollectorDown")
            fires("EdgedStoreFillsUp")
            fires("EdgedStoreNearlyFull")
            fires("EdgedStoreFull", device="turbine-7")
            fires("EdgedBackpressure")
        finally:
            plant.full.set()
            filling.join()

    def test_a_collector_that_comes_back_with_an_empty_landing(self, plant, fires):
        plant.landing = plant.path / "another"
        plant.collect()
        plant.ask("uplink.retry")  # it has waited for a while between its tries by now
        fires("EdgedUplinkStuck", device="turbine-7")

    def test_a_daemon_that_is_gone(self, plant, fires):
        plant.parts["daemon"].stop()
        fires("EdgedDeviceSilent", device="turbine-7")
        assert plant.exposed().count("\nedged_") == 1, "only edged_up is left"

    def test_every_alert_of_the_rules_has_been_provoked_here(self):
        names = re.findall(r"alert: (\w+)", (PROMETHEUS / "alerts.rules.yml").read_text())
        tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_prom*.py"))
        assert [name for name in names if f'"{name}"' not in tests] == []
