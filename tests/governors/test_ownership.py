"""Limits are owned as a transaction: saved first, restored on every way out, never widened."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governors.actuators.base import ClockLimits, switches
from governors.actuators.ownership import Ownership
from governors.actuators.restoring import restore
from governors.actuators.writers import Direct, NoWriter, choose_writer
from governors.detect import detect
from governors.errors import ActuatorError, NotPermitted, TakenOver
from governors.sysfs import Denied
from tests.governors.owning import MHZ, Bench, knobs_of, limits
from tests.governors.trees import CONTROLLED, CPU, Kernel, plant
from tests.whole import examples


class TestPinning:
    @pytest.mark.parametrize("board", CONTROLLED)
    def test_every_knob_of_every_board_goes_down_up_and_back(self, tmp_path, board):
        bench = Bench(tmp_path, board)
        with bench.owner() as ours:
            for knob in bench.knobs:
                allowed = ours.allowed(knob)
                for wanted in (allowed.min_hz, allowed.max_hz, allowed.min_hz):
                    got = ours.pin(knob, wanted)
                    assert got == knob.snap(wanted, allowed)
                    texts = {bench.sysfs.read(path) for path in knob.files().values()}
                    assert texts == {knob.text(got)}
        assert limits(bench.sysfs) == bench.before
        assert not bench.journal.exists()

    def test_it_stays_inside_of_what_stood_there(self, bench):
        with bench.owner() as ours:
            assert ours.allowed(bench.knob) == ClockLimits(729_600_000, 1_344_000_000)
            assert ours.pin(bench.knob, 115_200_000) == 729_600_000
            assert ours.pin(bench.knob, 1_728_000_000) == 1_344_000_000

    def test_a_range_is_set_as_a_range(self, bench):
        with bench.owner() as ours:
            got = ours.limit(bench.knob, ClockLimits(900 * MHZ, 1200 * MHZ))
            assert got == ClockLimits(883_200_000, 1_190_400_000)

    def test_letting_go_between_beats_goes_back_to_the_originals(self, bench):
        with bench.owner() as ours:
            ours.pin(bench.knob, 729_600_000)
            ours.loosen(bench.knob)
            assert limits(bench.sysfs) == bench.before
            assert ours.watch() == []
            assert ours.leaving[bench.knob.name].count == 1

    def test_the_same_pin_again_writes_nothing(self, tmp_path):
        class Counting(Kernel):
            writes = 0

            def write(self, path, value):
                self.writes += 1
                super().write(path, value)

        bench = Bench(tmp_path, sysfs=Counting)
        with bench.owner() as ours:
            ours.pin(bench.knob, 729_600_000)
            wrote = bench.sysfs.writes
            ours.pin(bench.knob, 729_600_000)
            assert (wrote, bench.sysfs.writes) == (1, 1)  # the minimum stood there already

    @settings(max_examples=examples(40))
    @given(st.lists(st.tuples(*[st.integers(0, 3_000_000_000)] * 2), max_size=6))
    def test_whatever_is_asked_for_the_kernel_never_refuses_and_all_comes_back(
        self, tmp_path_factory, asked
    ):
        bench = Bench(tmp_path_factory.mktemp("b"), "jetson-nano-r32")
        with bench.owner() as ours:
            for knob in bench.knobs:
                for pair in asked:
                    low, high = sorted(pair)
                    got = ours.limit(knob, ClockLimits(low, high))
                    allowed = ours.allowed(knob)
                    assert allowed.min_hz <= got.min_hz <= got.max_hz <= allowed.max_hz
        assert limits(bench.sysfs) == bench.before

    def test_what_it_costs_is_measured_without_changing_anything(self, bench):
        with bench.owner() as ours:
            cost = ours.measure(bench.knob, times=5)
            assert limits(bench.sysfs) == bench.before
            ours.pin(bench.knob, 729_600_000)
            assert (cost.count, cost.max_us >= cost.usual_us > 0) == (6, True)

    def test_who_has_not_taken_may_not_pin(self, bench):
        with pytest.raises(ActuatorError, match="take"):
            bench.owner().pin(bench.knob, MHZ)


class TestRefusals:
    def test_a_board_whose_files_may_not_be_written_is_left_alone(self, tmp_path):
        class ReadOnly(Kernel):
            def writable(self, path):
                return False

            def write(self, path, value):
                raise Denied(path, PermissionError(13, "Permission denied"))

        bench = Bench(tmp_path, sysfs=ReadOnly)
        with pytest.raises(NotPermitted, match="no right to write"):
            bench.owner().take()
        assert not bench.journal.exists()

    def test_a_right_that_is_lost_on_the_way_says_so(self, tmp_path):
        class Losing(Kernel):
            lost = False

            def write(self, path, value):
                if self.lost:
                    raise Denied(path, PermissionError(13, "Permission denied"))
                super().write(path, value)

        bench = Bench(tmp_path, sysfs=Losing)
        ours = bench.owner()
        ours.take()
        ours.pin(bench.knob, 883_200_000)
        bench.sysfs.lost = True
        with pytest.raises(NotPermitted, match="governor show"):
            ours.pin(bench.knob, 729_600_000)
        assert any("could not be restored" in line for line in ours.release())
        bench.sysfs.lost = False
        restore(bench.sysfs, Direct(bench.sysfs), bench.journal)
        assert limits(bench.sysfs) == bench.before

    def test_a_journal_that_cannot_be_kept_means_that_nothing_is_written(self, bench):
        bench.journal.parent.write_text("a file, where a directory must be")
        with pytest.raises(NotPermitted, match="without a journal"):
            bench.owner().take()
        assert limits(bench.sysfs) == bench.before

    @pytest.mark.parametrize("text", ["{", "[]", '{"format": 9}', '{"format": 1, "files": [3]}'])
    def test_a_garbled_journal_is_named_and_nothing_is_written(self, bench, text):
        bench.journal.parent.mkdir()
        bench.journal.write_text(text)
        with pytest.raises(ActuatorError, match="not a journal of limits"):
            bench.owner().take()
        assert limits(bench.sysfs) == bench.before

    def test_a_board_without_control_has_nobody_who_writes(self, tmp_path):
        sysfs = plant(tmp_path, "no-control")
        writer = choose_writer(sysfs, knobs_of(sysfs), tmp_path / "none.sock")
        assert isinstance(writer, NoWriter)
        with pytest.raises(NotPermitted, match="no limit can be set"):
            Ownership(sysfs, writer, tmp_path / "journal", []).take()


class Late:
    """A helper that is asked, is given up waiting for, and writes all the same: later, or before it
    dies."""

    def __init__(self, sysfs):
        self._direct, self.late, self.asleep = Direct(sysfs), [], False

    def refusal(self, path):
        return self._direct.refusal(path)

    def write(self, path, text):
        if self.asleep:
            self.late.append((path, text))
            raise NotPermitted("the helper does not answer (timed out)")
        self._direct.write(path, text)

    def wake(self):
        self.asleep = False
        for asked in self.late:
            self._direct.write(*asked)


class TestLateHelper:
    @pytest.mark.parametrize("seen", ["by nobody", "on watch", "on the next pin"])
    def test_what_it_wrote_after_we_had_given_up_is_ours_and_is_restored(self, bench, seen):
        late = Late(bench.sysfs)
        with Ownership(bench.sysfs, late, bench.journal, bench.knobs) as ours:
            assert ours.pin(bench.knob, 729_600_000) == 729_600_000
            late.asleep = True
            with pytest.raises(NotPermitted, match="does not answer"):
                ours.pin(bench.knob, 1_344_000_000)
            assert ours.watch() == []
            late.wake()
            assert bench.sysfs.read(bench.knob.max_path) == "1344000"
            if seen == "on watch":
                assert ours.watch() == []
            elif seen == "on the next pin":
                assert ours.pin(bench.knob, 960_000_000) == 960_000_000
        assert limits(bench.sysfs) == bench.before
        assert not bench.journal.exists()

    def test_what_another_wrote_meanwhile_is_not(self, bench):
        late = Late(bench.sysfs)
        with Ownership(bench.sysfs, late, bench.journal, bench.knobs) as ours:
            late.asleep = True
            with pytest.raises(NotPermitted):
                ours.pin(bench.knob, 1_190_400_000)
            late.asleep = False
            bench.put(bench.knob, 729_600_000, 960_000_000)
            assert [change.what for change in ours.watch()] == ["changed"]
        assert bench.sysfs.read(bench.knob.max_path) == "960000"


class Cut(Exception):
    """What a signal's handler raises, wherever the process happens to be."""


class Cutting(Direct):
    """Raises `Cut` at one write: before it is done, or when it is."""

    def __init__(self, sysfs, number, done):
        super().__init__(sysfs)
        self._left, self._done = number, done

    def write(self, path, text):
        self._left -= 1
        if self._left == 0 and not self._done:
            raise Cut
        super().write(path, text)
        if self._left == 0:
            raise Cut


class TestSignals:
    WRITES = 10  # of the run below: eight that pin and loosen, two that give back

    def run(self, bench, writer):
        with Ownership(bench.sysfs, writer, bench.journal, bench.knobs) as ours:
            for hz in (960_000_000, 1_190_400_000):
                ours.pin(bench.knob, hz)
            ours.loosen(bench.knob)
            ours.pin(bench.knob, 883_200_000)

    @pytest.mark.parametrize("done", [False, True])
    @pytest.mark.parametrize("number", range(1, WRITES + 1))
    def test_wherever_one_cuts_in_all_is_given_back(self, bench, number, done):
        with pytest.raises(Cut):
            self.run(bench, Cutting(bench.sysfs, number, done))
        assert limits(bench.sysfs) == bench.before
        assert not bench.journal.exists()
        with bench.owner():
            pass  # no process holds the board's locks

    def test_there_is_no_other_place_to_cut_in(self, bench):
        self.run(bench, Cutting(bench.sysfs, self.WRITES + 1, done=False))
        assert limits(bench.sysfs) == bench.before


class TestOthers:
    """nvpmodel, jetson_clocks, a person."""

    def test_a_changed_limit_is_noticed_and_the_plan_goes_inside_of_it(self, bench):
        with bench.owner() as ours:
            ours.pin(bench.knob, 1_190_400_000)
            bench.put(bench.knob, 729_600_000, 960_000_000)  # nvpmodel -m 3
            with pytest.raises(TakenOver, match="holds 729600, edged set 1190400"):
                ours.pin(bench.knob, 1_190_400_000)
            (change,) = ours.watch()
            assert (change.name, change.what) == (bench.knob.name, "changed")
            assert change.allowed == ClockLimits(729_600_000, 960_000_000)
            assert ours.pin(bench.knob, 1_190_400_000) == 960_000_000
        assert bench.sysfs.read(bench.knob.max_path) == "960000"

    def test_it_is_noticed_even_before_the_first_pin(self, bench):
        with bench.owner() as ours:
            bench.put(bench.knob, 729_600_000, 960_000_000)
            assert [change.what for change in ours.watch()] == ["changed"]
            assert ours.watch() == []

    def test_after_jetson_clocks_there_is_one_clock_left(self, bench):
        with bench.owner() as ours:
            bench.put(bench.knob, 1_728_000_000, 1_728_000_000)
            ours.watch()
            assert ours.pin(bench.knob, 883_200_000) == 1_728_000_000

    def test_what_is_not_ours_any_more_is_left_and_reported(self, bench):
        ours = bench.owner()
        ours.take()
        ours.pin(bench.knob, 1_190_400_000)
        bench.put(bench.knob, 806_400_000, 960_000_000)
        left = ours.release()
        assert len(left) == 2
        assert all("set by another process" in line for line in left)
        assert bench.sysfs.read(bench.knob.max_path) == "960000"
        assert not bench.journal.exists()

    @pytest.mark.parametrize("mine", ["min", "max"])
    def test_half_a_pair_is_restored_beside_a_foreign_half(self, bench, mine):
        """The foreign half stays, and the kernel is never asked for min > max."""
        ours = bench.owner()
        ours.take()
        ours.pin(bench.knob, 1_190_400_000)
        foreign = bench.knob.files()["max" if mine == "min" else "min"]
        text = "500000" if mine == "min" else "1500000"
        bench.place(foreign).write_text(text)
        ours.release()
        low, high = (bench.sysfs.read_int(p) for p in (bench.knob.min_path, bench.knob.max_path))
        assert bench.sysfs.read(foreign) == text
        assert low <= high

    def test_a_garbled_limit_makes_its_knob_dormant_and_nothing_raises(self, bench):
        with bench.owner() as ours:
            bench.place(bench.knob.max_path).write_text("\x00\xffgarbage")
            assert [change.what for change in ours.watch()] == ["gone"]
            with pytest.raises(ActuatorError, match="cannot be set now"):
                ours.pin(bench.knob, 729_600_000)
            bench.place(bench.knob.max_path).write_text("1344000\n")
            assert [change.what for change in ours.watch()] == ["back"]
            assert ours.pin(bench.knob, 729_600_000) == 729_600_000


class TestHotplug:
    def vanish(self, bench):
        at = bench.place(bench.knob.min_path).parent
        at.rename(at.with_name("offline"))
        return at

    def test_a_policy_whose_cores_go_offline_sleeps_and_comes_back(self, bench):
        with bench.owner() as ours:
            ours.pin(bench.knob, 729_600_000)
            at = self.vanish(bench)
            with pytest.raises(ActuatorError):
                ours.pin(bench.knob, 960_000_000)
            assert ours.dormant.keys() == {bench.knob.name}
            assert ours.watch() == []  # the pin has noticed already
            assert ours.pin(bench.knobs[1], 729_600_000) == 729_600_000
            at.with_name("offline").rename(at)
            assert [change.what for change in ours.watch()] == ["back"]
            assert ours.pin(bench.knob, 960_000_000) == 960_000_000
        assert limits(bench.sysfs) == bench.before

    def test_watching_says_that_it_is_gone_once(self, bench):
        with bench.owner() as ours:
            self.vanish(bench)
            assert [change.what for change in ours.watch()] == ["gone"]
            assert ours.watch() == []

    def test_what_is_offline_at_the_end_is_restored_when_it_is_back(self, bench):
        """The kernel keeps an offline policy's limits: our pin would come back with the core."""
        ours = bench.owner()
        ours.take()
        ours.pin(bench.knob, 883_200_000)
        at = self.vanish(bench)
        assert any("is gone" in line for line in ours.release())
        with bench.owner(bench.knobs[1:]):
            pass
        assert bench.journal.exists()
        at.with_name("offline").rename(at)
        restore(bench.sysfs, Direct(bench.sysfs), bench.journal)
        assert limits(bench.sysfs) == bench.before
        assert not bench.journal.exists()

    def test_or_by_a_daemon_that_runs_when_it_comes_back(self, bench):
        ours = bench.owner()
        ours.take()
        ours.pin(bench.knob, 883_200_000)
        at = self.vanish(bench)
        ours.release()
        with bench.owner() as ours:
            at.with_name("offline").rename(at)
            (change,) = ours.watch()
            assert change.allowed == ClockLimits(729_600_000, 1_344_000_000)
        assert limits(bench.sysfs) == bench.before
        assert not bench.journal.exists()

    def test_a_knob_that_was_offline_at_the_start_can_be_set_later(self, bench):
        at = self.vanish(bench)
        with bench.owner() as ours:
            assert bench.knob.name in ours.dormant
            at.with_name("offline").rename(at)
            assert [change.what for change in ours.watch()] == ["back"]
            assert ours.pin(bench.knob, 729_600_000) == 729_600_000
        assert limits(bench.sysfs) == bench.before


class TestSwitches:
    def test_a_core_goes_offline_and_comes_back_and_both_are_measured(self, bench):
        core = next(s for s in switches(bench.sysfs, detect(bench.sysfs)) if s.name == "core.5")
        ours = bench.owner([core])
        ours.take()
        assert ours.set(core, "0") == "0"
        assert bench.sysfs.read(f"{CPU}/cpu5/online") == "0"
        ours.release()
        assert bench.sysfs.read(f"{CPU}/cpu5/online") == "1"
        assert ours.costs["core.5"].usual_us > 0
        assert ours.leaving["core.5"].usual_us > 0

    def test_a_switch_takes_its_values_only(self, bench):
        power = next(s for s in switches(bench.sysfs, detect(bench.sysfs)) if s.name == "gpu.power")
        with bench.owner([power]) as ours:
            with pytest.raises(ActuatorError, match="takes auto, on"):
                ours.set(power, "off")
            assert ours.set(power, "on") == "on"
        assert bench.sysfs.read(power.path) == "auto"
