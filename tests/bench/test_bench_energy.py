"""`edged bench energy`: laws against closed forms, nothing fitted, every figure told."""

from __future__ import annotations

import ast
import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import governors.profile_reader
from edged.bench import (
    boards,
    energy,
    energy_arms,
    energy_ecojoin,
    energy_gpu,
    energy_memory,
    energy_published,
    energy_report,
    energy_service,
)
from edged.bench.energy_arms import Nano, fixed_batches, paper_nano
from edged.bench.energy_service import load
from edged.errors import ConfigError
from edged.simulate.device import SimulatedDevice
from governors.work import RaceCost
from tests.whole import examples

SERVICE = load()
NANO = paper_nano()
KEYS = {"variant", "watts", "published_watts", "error_above_idle", "error_watts"}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    at = tmp_path_factory.mktemp("energy")
    done = CliRunner().invoke(
        energy.command, ["--json", str(at / "e.json"), "--plot", str(at / "e.png")]
    )
    assert done.exit_code == 0, done.output
    assert (at / "e.png").stat().st_size > 10_000
    return json.loads((at / "e.json").read_text())


class TestServiceTimes:
    def test_the_fit_finds_a_law_that_is_known(self):
        points = [
            energy_service.Point(w, n, 1, 40.0 + each * n)
            for w, each in ((1_000, 0.1), (100_000, 0.3))
            for n in (16, 1024, 65536)
        ]
        law = energy_service._fit("made up", points)
        assert law.fixed_us == pytest.approx(40.0)
        assert law.each_us == pytest.approx((0.1, 0.3))
        assert law.residual == pytest.approx(0.0, abs=1e-9)

    def test_every_member_is_described_within_a_quarter_of_most_of_its_points(self):
        assert {"chain", "bucket", "nested_loop", "handshake"} == set(SERVICE.members)
        assert all(m.law.residual < 0.25 for m in SERVICE.members.values())

    def test_cycles_scale_by_width_and_waits_are_counted(self):
        member = SERVICE.members["chain"]
        cost = SERVICE.cost("chain", NANO, 10_485_760, threads=1)
        assert cost.cycles_per_unit == pytest.approx(min(member.law.each_us) * 3570 * 8 / 3)
        assert cost.stall_us_per_unit == pytest.approx(energy_memory.chain_ns(10_485_760) / 1e3)
        assert cost.cycles == pytest.approx(member.law.fixed_us * 3570 * 8 / 3)
        assert cost.cores == 1.0

    def test_four_threads_share_a_row_and_are_handed_it(self):
        one, four = (SERVICE.cost("chain", NANO, 10**6, threads=t) for t in (1, 4))
        assert four.cycles_per_unit == pytest.approx(one.cycles_per_unit / 4)
        assert four.cores == 4.0
        assert four.cycles > one.cycles

    @given(st.floats(1, 8), st.sampled_from(sorted(SERVICE.members)))
    def test_a_row_never_becomes_cheaper_by_a_larger_window(self, exponent, name):
        small, large = (SERVICE.cost(name, NANO, round(10**e)) for e in (exponent, exponent + 0.3))
        at = 1_428_000_000
        assert large.us(10**6, at) >= small.us(10**6, at) * (1 - 1e-9)

    def test_searching_members_go_on_in_proportion_to_the_window(self):
        a, b = (SERVICE.cost("nested_loop", NANO, w).cycles_per_unit for w in (10**6, 10**7))
        assert b == pytest.approx(10 * a)

    def test_unknown_members_and_cores_are_refused_with_what_is_known(self):
        with pytest.raises(ConfigError, match=r"hells.*chain"):
            SERVICE.cost("hells", NANO, 1000)
        with pytest.raises(ConfigError, match="cannot read service times"):
            load(Path("nowhere.toml"))


class TestNothingIsFitted:
    def test_the_frozen_file_holds_measured_points_and_says_where_they_are_from(self):
        document = energy_service.tomllib.loads(energy_service.FROZEN.read_text())
        assert document["machine"].keys() == {
            "name", "date", "how", "parallel_share",
        }  # fmt: skip
        points = np.concatenate([np.array(k["points"]) for k in document["kernel"].values()])
        assert (points > 0).all()
        assert set(points[:, 2]) == {1, 2}

    @pytest.mark.parametrize(
        "module", [energy_service, energy_arms, energy_ecojoin, energy_gpu, energy_memory]
    )
    def test_what_is_simulated_reads_no_published_value(self, module):
        names = set()
        for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == energy_published.__name__:
                names |= {alias.name for alias in node.names}
        assert names <= {"WINDOW_S"}

    def test_the_boards_profile_names_no_figure_of_the_paper_but_the_idle_power(self):
        assert governors.profile_reader.load("jetson-nano").figures("idle")[0].figure.value == 1.03
        assert energy_published.IDLE_W == 1.03


class TestFixedBatches:
    """At a pinned clock a period is a race and a rest."""

    COST = RaceCost(cycles=2e6, cycles_per_unit=400.0, stall_us_per_unit=0.05, cores=4.0)
    HZ = 1_224_000_000

    @settings(max_examples=examples(30), deadline=None)
    @given(st.floats(100, 300_000), st.integers(100, 100_000))
    def test_power_is_that_of_the_closed_form(self, rate, batch):
        race_us = 1e6 * (2e6 + 400 * batch) / self.HZ + 0.05 * batch
        period_us = 1e6 * batch / rate / 2
        device = SimulatedDevice(NANO)
        run = fixed_batches(device, self.COST, rate, batch, self.HZ)
        if race_us > 1.05 * period_us:
            assert run.watts is None
            return
        if race_us > 0.95 * period_us:
            return
        tariff = device.tariff
        idle, awake = tariff.idle_watts, tariff.race_watts("cpu", self.HZ, 0.0)
        above = tariff.race_watts("cpu", self.HZ, 4.0) - idle
        gap_j = min(tariff.wake_j, (awake - idle) * (period_us - race_us) / 1e6)
        watts = idle + (above * race_us / 1e6 + gap_j) * 1e6 / period_us
        assert run.watts == pytest.approx(watts, rel=0.07)
        assert run.race_ms == pytest.approx(race_us / 1e3, rel=1e-6)
        assert run.latency_ms >= 2 * period_us / 1e3 * (1 - 1e-9)


class TestMemory:
    """The published table, and counts of lines."""

    def test_reads_are_those_of_the_table_beyond_the_l2(self):
        assert energy_memory.read_ns(1 << 19) == energy_memory.read_ns(1 << 20) == 0.0
        assert energy_memory.read_ns(64 << 20) == pytest.approx(173.4 - 18.9)
        assert energy_memory.read_ns(3 << 30) == pytest.approx(267.0 - 18.9)

    @given(st.floats(1, 1e10), st.floats(1, 4))
    def test_what_is_spread_wider_is_never_quicker(self, spread, more):
        assert energy_memory.read_ns(spread) <= energy_memory.read_ns(spread * more) + 1e-9

    def test_reading_in_sequence_is_bandwidth_where_nothing_fits(self):
        assert energy_memory.stream_ns(4750, 1e12) == pytest.approx(1000, rel=1e-3)
        assert energy_memory.stream_ns(4750, 1 << 20) == 0.0


class TestTheAuthorsProgram:
    """As its source has it."""

    @given(st.integers(64, 30_000_000))
    def test_buckets_are_the_sources(self, window):
        n = window // 64
        made = 1
        while made < n:
            made *= 2
        made = 2 * made if made < n / 0.2 else made
        assert energy_ecojoin.buckets(window) == made

    def test_half_a_million_buckets_of_1536_bytes_a_side_at_a_million_tuples(self):
        assert energy_ecojoin.buckets(10_485_760) == 524_288
        assert energy_ecojoin.table_bytes(10_485_760) == 2 * 524_288 * (1536 + 16)

    @pytest.mark.parametrize(
        ("rate", "index"),
        [(32, 2), (16_384, 2), (32_768, 4), (65_536, 5), (131_072, 6), (262_144, 8),
         (524_288, 14), (1_048_576, 14)],
    )  # fmt: skip
    def test_race_clocks_are_those_of_the_settings(self, rate, index):
        assert energy_ecojoin.race_hz(rate) == NANO.clusters[0].table_hz[index - 1]

    @settings(max_examples=examples(20), deadline=None)
    @given(st.integers(1_000, 200_000), st.floats(0.05, 2))
    def test_a_round_is_a_race_spinning_and_sleep(self, rate, seconds):
        device, hz = SimulatedDevice(NANO), 1_428_000_000
        batch = max(1, round(rate * seconds))
        cost = RaceCost(1e5, 300.0, 0.0, 0.02, 4.0)
        rounds = energy_ecojoin.Rounds(device, cost, rate, batch, hz)
        assert rounds.run()
        race_us, spin_us = cost.us(2 * batch, hz), 600_000 / 102
        tariff = device.tariff
        above = [tariff.race_watts("cpu", *at) - tariff.idle_watts
                 for at in ((hz, 4.0), (102_000_000, 3.0))]  # fmt: skip
        each_j = above[0] * race_us / 1e6 + above[1] * spin_us / 1e6 + tariff.wake_j
        watts = device.idle_watts + each_j * 1e6 / rounds.period_us
        assert device.joules / device.at_us * 1e6 == pytest.approx(watts, rel=0.06)

    def test_small_batches_never_let_the_workers_sleep(self):
        tiny, large = (Nano(SERVICE).ecojoin(10_000, batch) for batch in (10, 10_000))
        assert tiny.watts > 2.5 > 1.1 > large.watts

    def test_more_than_the_period_holds_is_told(self):
        assert Nano(SERVICE).ecojoin(2_097_152, 2_097_152).watts is None


class TestTheGpu:
    def test_intervals_contain_a_gpu_that_costs_nothing_and_the_rest_of_ten_watts(self):
        device = SimulatedDevice(NANO)
        core, all_cores = (device.tariff.race_watts("cpu", 1_428_000_000, n) for n in (1.0, 4.0))
        found = energy_gpu.watts(device, energy_gpu.Interval(1.0, 1.0))
        assert found.low == pytest.approx(core)
        assert found.high == pytest.approx(core + 10 - all_cores + energy_gpu.POWERED_W)

    def test_hells_is_square_in_the_rate(self):
        one, two = (energy_gpu.busy("HELLS", r, 10 * r) for r in (1_000, 2_000))
        assert two.low == pytest.approx(4 * one.low) and two.high == pytest.approx(4 * one.high)
        assert one.low < one.middle < one.high


class TestFigures:
    def test_every_row_has_its_keys_and_is_marked_simulated(self, result):
        assert result["provenance"] == "simulated"
        rows = result["figure3"] + result["figure4"] + result["orin_nano"]
        assert all(row.keys() >= KEYS | {"rate"} for row in rows)
        assert all(row.keys() >= KEYS | {"batch"} for row in result["figure5"])
        assert {row["provenance"] for row in rows + result["figure5"]} == {"simulated"}
        assert len(result["figure3"]) == 7 * 16

    def test_errors_are_above_idle_and_told_from_a_fifth_of_a_watt_on(self, result):
        for row in result["figure3"]:
            published, error = row["published_watts"], row["error_above_idle"]
            told = published is not None and row["watts"] is not None and published >= 1.23 - 1e-9
            assert (error is not None) == told
            if told:
                assert error == pytest.approx((row["watts"] - published) / (published - 1.03))

    def test_published_values_are_where_the_paper_has_them(self, result):
        at = {(r["variant"], r["rate"]): r["published_watts"] for r in result["figure3"]}
        assert at["ecoJoin", 1_048_576] == 3.93
        assert at["nested loop", 2_048] == 2.9 and at["nested loop", 4_096] is None
        assert at["HELLS", 4_096] == 3.0 and at["Handshake", 32] == 5.3
        assert {r["batch"]: r["published_watts"] for r in result["figure5"]}[100_000] == 1.46

    def test_what_nothing_calibrates_is_an_interval_and_says_why(self, result):
        for row in result["figure3"]:
            if row["variant"] in ("HELLS", "ecoJoin GPU") and row["watts"] is not None:
                low, high = row["interval_watts"]
                assert 1.03 <= low < high <= 10.0
                assert row["watts"] == pytest.approx((low + high) / 2)
                assert "calibrates" in row["note"]

    def test_ecojoin_is_figure_4s_scaled_clocks(self, result):
        eco = energy.by_rate(result["figure3"], "ecoJoin")
        assert eco == energy.by_rate(result["figure4"], "AB+FS")

    def test_power_never_falls_with_the_rate(self, result):
        for name in ("edged", "edged daemon", "ecoJoin", "nested loop"):
            watts = list(energy.by_rate(result["figure3"], name).values())
            assert all(b >= a - 0.005 for a, b in pairwise(watts)), name

    def test_every_aim_is_judged_by_its_own_figures(self, result):
        aims = {a["aim"]: a for a in result["aims"]}
        errors = aims["ecoJoin CPU within 25% above idle"]
        assert errors["met"] == all(abs(e) <= 0.25 for e in errors["value"].values())
        eco, own = (energy.by_rate(result["figure3"], n) for n in ("ecoJoin", "edged"))
        assert aims["edged never above ecoJoin (simulated)"]["met"]
        assert all(own[r] <= w for r, w in eco.items())
        less = aims["edged at least 40% less above idle at 1 M tuples/s a stream"]
        top = 1_048_576
        assert less["value"]["simulated"] == pytest.approx(
            1 - (own[top] - 1.03) / (eco[top] - 1.03)
        )
        assert less["met"]

    def test_the_tables_of_readme_and_docs_are_these_figures(self, result):
        watts = {v: energy.by_rate(result["figure3"], v) for v in energy.FIGURE3}

        def row(variant, rates, mark=""):
            cells = (watts[variant].get(rate) for rate in rates)
            return " | ".join("–" if w is None else f"{mark}{w:.2f}{mark}" for w in cells) + " |"

        docs = [2**16, 2**17, 2**18, 2**19, 2**20]
        root = Path(__file__).parents[2]
        text = (root / "docs/measurements/ecojoin.md").read_text()
        for variant, mark in (("ecoJoin", ""), ("edged", ""), ("edged daemon", "**")):
            assert row(variant, docs, mark).replace("| – |", f"| {mark}–{mark} |") in text, variant
        errors = [r for r in result["figure3"] if r["variant"] == "ecoJoin" and r["rate"] in docs]
        cells = [
            f"{r['error_watts']:+.2f} W, {r['error_watts'] / (r['published_watts'] - 1.03):+.0%}"
            for r in errors
        ]
        told = text.replace("−", "-").replace(" above idle |", " |").replace(" %", "%")
        assert f"| its error | {' | '.join(cells)} |" in told
        readme, at = (root / "README.md").read_text(), 2**18
        assert f"| **{watts['edged daemon'][at]:.2f} W** with the whole daemon" in readme
        assert f"{watts['edged'][at]:.2f} W with its join alone" in readme
        assert f"the ecoJoin paper's join alone {watts['ecoJoin'][at]:.2f} W" in readme

    def test_the_papers_claims_in_docs_are_these_figures(self, result):
        text = (Path(__file__).parents[2] / "docs/measurements/ecojoin.md").read_text()
        lines = [line for line in text.splitlines() if "reproduced:" in line or "missed:" in line]
        assert len(lines) == len(result["claims"]) == 7
        verdicts = {claim["reproduced"] for claim in result["claims"]}
        assert verdicts == {True, False}
        by_published = {claim["published"]: claim for claim in result["claims"]}
        for published, cell in ((0.81, "81 %"), (0.65, "65 %"), (100, "two orders"), (0.28, "28 %"),
                                (0.20, "20 %"), (500_000, "0.5 M"), (1.0, "than 1 W")):  # fmt: skip
            (line,) = [line for line in lines if cell in line]
            claim = by_published[published]
            assert ("reproduced" if claim["reproduced"] else "missed") in line
            for value in (claim["here"], *claim["own"].values()):
                shown = {"%": f"{100 * value:.0f}", "tuples/s": f"{value / 1e6:.2f} M",
                         "W": f"{value:.1f} W"}.get(claim["unit"], f"{value:.0f}")  # fmt: skip
                assert shown in line, (line, shown)

    def test_full_power_is_all_cores_at_the_highest_clock(self, result):
        handshake = energy.by_rate(result["figure3"], "Handshake")
        assert set(handshake.values()) == {result["full_power_watts"]}
        assert all(row["watts"] is None or row["watts"] <= result["full_power_watts"]
                   for row in result["figure4"])  # fmt: skip

    def test_the_notes_tell_the_figures_that_came_out(self, result):
        notes, held = " ".join(result["notes"]), result["sustained"]
        eco = energy.by_rate(result["figure3"], "ecoJoin")
        assert f"at 131 k ecoJoin draws {eco[2**17]:.2f} W" in notes
        assert f"fixed batches sustain {held['FB']['tuples_per_s_per_stream'] / 1e6:.2f} M" in notes
        assert f"the model {result['figure5'][0]['watts']:.1f} W" in notes
        below = [
            r["rate"]
            for r in result["figure3"]
            if r["variant"] == "HELLS"
            and r["published_watts"]
            and r["interval_watts"][1] < r["published_watts"] - 0.05
        ]
        assert f"From {below[0]} to {below[-1]} tuples/s edged's HELLS is below" in notes
        saved = energy.by_rate(result["figure4"], "AB"), energy.by_rate(result["figure4"], "AB+FS")
        assert all(saved[0][r] - saved[1][r] < 0.005 for r in (2**19, 2**20))

    def test_what_the_paper_claims_is_told_in_its_own_unit(self, result):
        told = [energy_report._claimed(claim) for claim in result["claims"]]
        assert told[0].endswith("tuples/s") and "%, at" in told[1] and "%, at" in told[2]
        assert " W, at " in told[3]
        assert "None" not in energy_report._values({"a": 1, "published": None})

    def test_how_much_hangs_on_what_is_assumed_is_told_on_both_sides(self, result):
        eco = energy.by_rate(result["figure3"], "ecoJoin")
        for row in result["sensitivity"]:
            assert (row["watts"] < eco[row["rate"]]) == (row["times"] < 1)
        assert len(result["sensitivity"]) == 2 * 2 * 3

    def test_each_arm_on_the_orin_nano_says_what_it_saves_and_why(self, result):
        found = {s["arm"]: s for s in result["orin_saves"]}
        assert list(found) == list(energy_arms.ORIN_ARMS[1:])
        for step in found.values():
            before, own = (energy.by_rate(result["orin_nano"], step[k]) for k in ("against", "arm"))
            assert step["most"] == pytest.approx(max(before[r] - own[r] for r in before))
            assert step["why"]

    def test_what_bounds_the_rate_is_named_and_no_row_goes_beyond(self, result):
        for name, bound in result["sustained"].items():
            assert bound["bounded_by"] in ("cpu", "memory", "network")
            assert bound["tuples_per_s_per_stream"] == min(bound["all"].values())
            rows = result["figure4"] if name == "FB" else result["figure3"]
            beyond = [r for r in rows if r["variant"] == name and r["rate"] > bound["all"]["cpu"]]
            assert all(r["watts"] is None and "keep up" in r["note"] for r in beyond)

    def test_batching_clocks_and_the_rest_each_cost_no_more_on_the_orin_nano(self, result):
        arms = [energy.by_rate(result["orin_nano"], arm) for arm in energy_arms.ORIN_ARMS]
        for worse, better in pairwise(arms[1:]):
            assert all(better[r] <= w + 1e-3 for r, w in worse.items())
        assert arms[0][8_192] > 1.5 * arms[1][8_192]

    def test_the_boards_picture_is_drawn_from_the_profiles(self, tmp_path):
        boards.draw(tmp_path / "boards.png")
        assert (tmp_path / "boards.png").stat().st_size > 10_000

    def test_latencies_with_the_waiting_are_beyond_the_papers(self, result):
        row = next(r for r in result["figure5"] if r["batch"] == 100_000)
        assert row["published_latency_ms"] == 1590.0
        assert row["latency_ms"] > 10_000 > row["race_ms"]
        assert math.isfinite(row["latency_ms"])
