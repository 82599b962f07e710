"""The faults of `test_faults`, met by the whole daemon: six boards, each with a daemon of its
own, all at the same time.

Whatever happens to its files, its helper or itself: beats go on, no other clock is touched, a rail
that is not read is lost, has a gap and no joules, and is back when it is; and in the end every
limit is as it was.  Each fault ends as it began, so that the next one meets a healthy daemon.
"""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.governors.faults import coming_and_going
from tests.governors.test_faults import FREEZES, attacked, restore
from tests.governors.whole import DEADLINE_S, HIGHEST, LOWEST, Whole

BOARDS = (
    "orin-nano-r36", "orin-nx-r35", "agx-orin-r35", "xavier-nx-r35", "jetson-nano-r32", "thor-r38",
)  # fmt: skip

TICK_S = 0.1
PHASE_READS = 4
"""Readings in which all cores are busy, then none is."""


def refused(whole, what):
    """One knob has `what`, all others obey; what is not read is lost and becomes a gap."""
    others = [k for k in whole.knobs if k is not whole.knob]
    whole.hold(HIGHEST)
    told = whole.until(lambda told: noted(told, whole.knob.name, what))
    assert not noted(told, *(k.name for k in others), what), "of the others nothing is told"
    highest = {p: whole.before[k.max_path] for k in others for p in (k.min_path, k.max_path)}
    whole.until(lambda _: highest.items() <= whole.limits().items())
    told = whole.until(lambda told: all(rail["problem"] for rail in whole.live(told)))
    lost = {rail["rail"] for rail in whole.live(told)}
    assert {rail: up for rail, up in whole.metric("edged_meter_up").items() if rail in lost} == (
        dict.fromkeys(lost, 0.0)
    )
    assert lost <= {event["facts"]["rail"] for event in whole.events("meter.lost")}
    joules = {rail["rail"]: (rail["joules"], rail["gap_us"]) for rail in told["rails"]}
    told = whole.until(
        lambda told: all(rail["gap_us"] > joules[rail["rail"]][1] for rail in whole.live(told))
    )
    for rail in whole.live(told):
        assert rail["joules"] == joules[rail["rail"]][0], "nothing is made up"


def noted(told, *names_and_what):
    """Whether the last thing that is told of a knob is that."""
    *names, what = names_and_what
    last = {change["name"]: change["what"] for change in told["changes"]}
    return any(last.get(name) == what for name in names)


def mended(whole):
    """All is as before."""
    whole.hold(LOWEST)
    whole.healthy()
    lost, back = ({event["facts"]["rail"] for event in whole.events(f"meter.{kind}")}
                  for kind in ("lost", "back"))  # fmt: skip
    live = {rail["rail"] for rail in whole.live(whole.ask("status")["energy"])}
    assert lost & live == back & live
    assert all(whole.metric("edged_meter_up")[rail] == 1.0 for rail in live)


def missing_files(whole):
    places = [*whole.files, *(whole.root / "sys/devices").rglob("in_power?_input")]
    whole.still = True
    for place in places:
        place.rename(place.with_name(f"{place.name}.away"))
    refused(whole, "gone")
    for place in places:
        place.with_name(f"{place.name}.away").rename(place)
    whole.still = False


def garbled_files(whole):
    whole.still = True
    kept = [place.read_bytes() for place in whole.files]
    for place in whole.files:
        place.write_bytes(b"\xff\x00 <unknown>")
    refused(whole, "gone")
    for place, content in zip(whole.files, kept, strict=True):
        place.write_bytes(content)
    whole.still = False


def no_right(whole):
    """The limit may be read and not written, the sensors not even read; when they may, the clock
    is set without a request."""
    modes = [place.stat().st_mode & 0o777 for place in whole.files]
    for place in whole.files:
        place.chmod(0o444 if place == whole.files[0] else 0)
    refused(whole, "refused")
    for place, mode in zip(whole.files, modes, strict=True):
        place.chmod(mode)
    highest = whole.before[whole.knob.max_path]
    whole.until(lambda _: whole.limits()[whole.knob.min_path] == highest)


def gone_in_flight(whole):
    """A clock's directory and a sensor come and go while the daemon reads and writes them."""
    at = whole.place(whole.knob.min_path).resolve().parent
    whole.still = True
    with coming_and_going([at, *(s.place for s in whole.sensors[:1])]):
        for n in range(6):
            whole.hold((LOWEST, HIGHEST)[n % 2])
            told = whole.beat()
            assert told["policy"]["problem"] == ""
            assert {change["name"] for change in told["changes"]} <= {whole.knob.name}
    whole.still = False


def hotplugged_core(whole):
    """A policy whose cores are offline has no directory."""
    at = whole.place(whole.knob.min_path).resolve().parent
    at.rename(at.with_name("offline"))
    told = whole.until(lambda told: noted(told, whole.knob.name, "gone"))
    assert told["policy"]["policy"] == "fixed" and told["policy"]["problem"] == ""
    at.with_name("offline").rename(at)
    whole.until(lambda told: noted(told, whole.knob.name, "back"))


def suspended_gpu(whole):
    """Its clock reads 0; its limits are set all the same, and it is not woken for that."""
    gpus = [knob for knob in whole.knobs if knob.kind == "gpu"]
    power = [p for p in (whole.root / "sys/devices").rglob("power/*") if p.is_file()]
    before = [place.read_text() for place in power]
    clocks = [whole.place(gpu.current_path) for gpu in gpus]
    kept = [place.read_text() for place in clocks]
    for place in clocks:
        place.write_text("0\n")
    for mhz, ends in ((HIGHEST, ("max_path", "min_path")), (LOWEST, ("min_path", "max_path"))):
        whole.hold(mhz)
        stood, moved = ([getattr(gpu, end) for gpu in gpus] for end in ends)
        wanted = {there: whole.before[here] for here, there in zip(stood, moved, strict=True)}
        whole.until(lambda _, wanted=wanted: wanted.items() <= whole.limits().items())
    assert [place.read_text() for place in power] == before
    for place, text in zip(clocks, kept, strict=True):
        place.write_text(text)


def frozen_meter(whole):
    """The same value for eight readings while work comes and goes; from there on it is a gap, in
    the rail's account, in the metrics and in the ledger, until it moves again."""
    expected = FREEZES[whole.board]
    name = min(expected).partition("/")[0]
    whole.still, since = True, -PHASE_READS

    def frozen(told):
        nonlocal since
        reads = next(m["reads"] for m in told["meters"] if m["name"] == name)
        if reads - since >= PHASE_READS:
            since, whole.works = reads, not whole.works
        return {k for k, r in by_name(told).items() if "frozen" in r["problem"]} == expected

    def gaps(told):
        return {key: rail["gap_us"] for key, rail in by_name(told).items() if key in expected}

    before = whole.until(frozen)
    told = whole.until(lambda told: all(us > gaps(before)[key] for key, us in gaps(told).items()))
    for key in expected:
        assert by_name(told)[key]["joules"] == by_name(before)[key]["joules"], "nothing is made up"
        rail = key.partition("/")[2]
        assert whole.metric("edged_meter_up")[rail] == 0.0
        assert whole.metric("edged_energy_gap_seconds_total")[rail] > 0.0
        assert rail in {event["facts"]["rail"] for event in whole.events("meter.lost")}
    if whole.board in ("orin-nano-r36", "agx-orin-r35", "jetson-nano-r32"):  # a model, one meter
        whole.until(lambda told: told["ledger"] and told["ledger"]["unmeasured_s"] > 0.0)
    whole.still = whole.works = False


def by_name(told):
    """Rails by meter and name."""
    return {f"{rail['meter']}/{rail['rail']}": rail for rail in told["rails"]}


def two_daemons(whole):
    """The second one reports the board's owner. Neither it nor the command changes anything."""
    second = whole.start("second")
    told = whole.ask("status", "second")["energy"]["policy"]
    assert (told["policy"], told["awaited"]) == ("hands_off", "fixed")
    assert "another daemon" in told["problem"]
    whole.journal = whole.home / "first/limits.journal"
    assert restore(whole).exit_code == 75
    assert whole.limits() == whole.pinned
    second.terminate()
    second.join(DEADLINE_S)
    assert second.exitcode == 0
    assert whole.limits() == whole.pinned


def killed_then_restored(whole):
    """`kill -9` while everything is pinned, and the command that the unit runs."""
    whole.stop(signal.SIGKILL)
    assert whole.limits() == whole.pinned
    whole.journal = whole.home / "first/limits.journal"
    done = restore(whole)
    assert done.exit_code == 0, done.output
    assert whole.limits() == whole.before and not whole.journal.exists()


def killed_then_started(whole):
    """`kill -9` while everything is pinned: the next start puts it back before it pins, here
    through the helper, since nothing is its own any more."""
    whole.stop(signal.SIGKILL)
    assert whole.limits() == whole.pinned
    whole.guard()
    whole.run()
    told = whole.ask("status")["energy"]
    assert told["restored"] and told["writer"]["name"] == "helper"


def dead_helper(whole):
    """Without it nothing is set and nothing ends; one that was started again is used again."""
    whole.guard()
    whole.helper.stop(signal.SIGKILL)
    whole.hold(HIGHEST)
    whole.until(lambda told: all(noted(told, knob.name, "refused") for knob in whole.knobs))
    assert whole.limits() == whole.pinned
    whole.helper.start()
    whole.until(lambda _: not whole.pinned.items() & whole.limits().items())


def hostile_requests(whole):
    with attacked(whole.helper, whole.root, whole.knob):
        whole.hold(HIGHEST)
        highest = whole.before[whole.knob.max_path]
        whole.until(lambda _: whole.limits()[whole.knob.min_path] == highest)


def ended(whole):
    """No fault: after all that has happened here, SIGTERM leaves everything as it was."""
    assert whole.stop(signal.SIGTERM) == 0
    assert whole.limits() == whole.before
    assert not (whole.home / "first/limits.journal").exists()


FAULTS = {
    "missing files": missing_files,
    "garbled files": garbled_files,
    "EACCES": no_right,
    "ENOENT in flight": gone_in_flight,
    "a hotplugged core": hotplugged_core,
    "a suspended GPU": suspended_gpu,
    "a meter that freezes": frozen_meter,
    "two daemons contending": two_daemons,
    "kill -9 while pinned, restore command": killed_then_restored,
    "kill -9 while pinned, next start": killed_then_started,
    "a helper that dies": dead_helper,
    "hostile requests to the helper": hostile_requests,
    "SIGTERM": ended,
}


@pytest.fixture(scope="module")
def wholes():
    made, over = [Whole(board) for board in BOARDS], threading.Event()
    kernel = threading.Thread(target=account, args=(made, over))
    kernel.start()
    yield made
    over.set()
    kernel.join()
    for whole in made:
        whole.close()


def account(wholes, over):
    """What the kernel's account of CPU time says, of all boards."""
    at_s = time.monotonic()
    while not over.wait(TICK_S):
        now_s = time.monotonic()
        for whole in wholes:
            whole.account(now_s - at_s)
        at_s = now_s


@pytest.mark.parametrize("fault", FAULTS)
def test_the_whole_daemon_lives_through_it_on_every_board(wholes, fault):
    def meet(whole):
        if whole.process is None:
            whole.healthy()
        FAULTS[fault](whole)
        if whole.process is not None:
            mended(whole)

    with ThreadPoolExecutor(len(wholes)) as pool:
        met = {whole.board: pool.submit(meet, whole) for whole in wholes}
    problems = {board: repr(e) for board, future in met.items() if (e := future.exception())}
    assert not problems, problems
