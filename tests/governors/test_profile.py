"""Board profiles: what they say, and what the reader refuses."""

import re
import subprocess
from fnmatch import fnmatch
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governors.errors import ProfileError
from governors.meters.rail_labels import rail as known_rail
from governors.power import PowerModel
from governors.profile_reader import DIRECTORY, load, names, parse, tomllib
from tests.governors import trees

REPOSITORY = Path(__file__).parents[2]
TEXT = {name: (DIRECTORY / f"{name}.toml").read_text() for name in names()}

# --- what there is


def test_there_are_six_profiles_and_each_reads():
    assert set(names()) == {
        "agx-orin", "generic-x86", "jetson-nano", "orin-nano", "orin-nx", "raspberry-pi-5",
    }  # fmt: skip
    for name in names():
        assert load(name).name == name


def test_tables_are_those_of_the_boards_as_the_fixture_trees_have_them():
    expected = {
        "orin-nano": (trees.ORIN_NANO_KHZ, trees.ORIN_NANO_GPU_HZ, 6),
        "orin-nx": (trees.ORIN_NX_KHZ, trees.ORIN_NX_GPU_HZ, 8),
        "agx-orin": (trees.AGX_ORIN_KHZ, trees.AGX_ORIN_GPU_HZ, 12),
        "jetson-nano": (trees.NANO_KHZ, trees.NANO_GPU_HZ, 4),
        "raspberry-pi-5": (trees.PI_5_KHZ, None, 4),
    }
    for name, (khz, gpu_hz, cores) in expected.items():
        profile = load(name)
        assert profile.core_count == cores
        for cluster in profile.clusters:
            assert cluster.table_hz == tuple(k * 1000 for k in khz)
        found = tuple(opp.hz for opp in profile.gpu.opps) if profile.gpu else None
        assert found == gpu_hz


def test_rails_are_what_the_meters_take_them_for():
    for name in ("orin-nano", "orin-nx", "agx-orin", "jetson-nano"):
        profile = load(name)
        present = {rail.name for rail in profile.rails}
        assert all(rail == known_rail(rail.name, present) for rail in profile.rails)


def test_every_figure_that_is_known_has_an_error_and_every_one_a_source():
    for name in names():
        for term in load(name).terms:
            figure = term.figure
            assert figure.source and figure.unit
            assert (figure.value is None) == (figure.error is None)
            if figure.value:
                assert figure.error


def test_sources_are_public_and_no_path_of_somebodys_machine():
    for text in TEXT.values():
        assert not re.search(r"/work/|hardware\.md|/tmp/|/home/", text)


def test_no_profile_holds_a_result_of_the_paper_but_its_idle_power():
    """Figures 3 to 5 are the check of the model: 1.46 W, 1.05 W, 4.93 W and their like."""
    powers = [term.figure.value for term in load("jetson-nano").terms]
    assert [p for p in powers if p is not None and p >= 1.0] == [1.03]


def test_an_unknown_profile_names_the_nearest():
    with pytest.raises(ProfileError, match="did you mean orin-nano"):
        load("orin-nanno")
    with pytest.raises(ProfileError, match="there are agx-orin, generic-x86"):
        load("zzz")


# --- what an installation holds


def test_an_installation_finds_every_profile_and_the_sweeps():
    held = resources.files("governors")
    assert {p.name for p in (held / "profiles").iterdir()} == {f"{n}.toml" for n in names()}
    sweeps = {p.name for p in (held / "data" / "nano_power").iterdir()}
    assert {"cpuAll_freq_iter.csv", "gpu_freq_iter.csv"} <= sweeps


def test_every_file_of_a_package_that_is_no_module_goes_into_the_wheel():
    tools = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]
    listed = ["git", "ls-files", *(w.rstrip("*") for w in tools["packages"]["find"]["include"])]
    files = subprocess.run(listed, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    others = [f for f in files.stdout.splitlines() if not f.endswith(".py")]
    assert len([f for f in others if f.startswith("governors/profiles/")]) == len(names())
    for file in others:
        package, _, rest = file.partition("/")
        globs = tools["package-data"].get(package, [])
        fits = [g for g in globs if fnmatch(rest, g) and rest.count("/") == g.count("/")]
        assert fits, f"{file} is not in the wheel"


# --- what the reader refuses


def changed(old, new, name="orin-nano"):
    assert old in TEXT[name]
    return TEXT[name].replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("railgate_delay_ms", "railgate_delay", "gpu.railgate_delay: no such setting"),
        ("residency_us", "residensy_us", "did you mean residency_us"),
        ('title = "', 'titel = "x"\ntitle = "', "titel: no such setting; did you mean title"),
        ("[[power.awake]]", "[[power.awaken]]", "awaken: no such setting; did you mean awake"),
        ("format = 1", "format = 2", "this version of edged reads 1"),
        ("value = 3.37", 'value = "3.37"', "expected number, got"),
        ("value = 3.37", "value = true", "expected number, got"),
        ("value = 3.37", 'value = "unknown"', "both are known or neither"),
        ("error = 0.3\n", "error = -0.3\n", "is no figure"),
        ("value = 3.37", "value = nan", "is no figure"),
        ('rail = "VDD_SOC"\nvalue', 'rail = "VDD_SOK"\nvalue', "the rails are VDD_IN"),
        ('input = ["VDD_IN"]', 'input = ["VDD_IN", "VDD_SOC"]', "VDD_IN, its whole"),
        ("cores = [4, 5]", "cores = [4, 5.5]", "expected integer, got number"),
        ("[115200, 192000", "[192000, 115200", "does not rise"),
        ("[power.volts]", "[power.volt]", "volt: no such setting; did you mean volts"),
        ("l1d_bytes = 65536\n", "", "l1d_bytes: is missing"),
        ('feeds = ["soc"]', 'feeds = ["sock"]', "'sock' is not known; did you mean soc"),
        ("[modes]", "[modes", "is not TOML"),
        ('source = "as policy0"', 'source = " "', "cluster[1].source: is empty"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(old, new, says):
    with pytest.raises(ProfileError, match=r"here\.toml") as problem:
        parse(changed(old, new), "here.toml")
    assert says in str(problem.value)


def test_voltages_are_public_or_their_shape_is_assumed_but_never_neither():
    text = TEXT["orin-nano"]
    start = text.index("[power.volts]")
    without = text[:start] + text[text.index("[power.residual]") :]
    with pytest.raises(ProfileError, match="has no voltages"):
        parse(without, "x")


def test_unknown_is_none_wherever_a_board_may_not_say():
    nano = load("jetson-nano")
    assert nano.idle_states[1].exit_us is None
    assert nano.transitions[0].us is None
    assert nano.uplink.tail_joules is None
    assert [t.figure.value for t in nano.figures("gpu_dynamic")] == [None]


KEYS = sorted(set(re.findall(r"^([a-z_0-9]+) =", TEXT["orin-nano"], re.M)))


@given(st.sampled_from(KEYS), st.integers(0, 8), st.sampled_from("abcxyz_"))
def test_a_mistyped_key_anywhere_is_an_error(key, at, letter):
    at = min(at, len(key))
    wrong = key[:at] + letter + key[at:]
    text = re.sub(rf"^{key} =", f"{wrong} =", TEXT["orin-nano"], count=1, flags=re.M)
    with pytest.raises(ProfileError):
        parse(text, "x")


@given(st.text(max_size=200))
def test_any_text_reads_or_is_a_profile_error(text):
    with pytest.raises(ProfileError):
        parse(text, "x")


# --- the table in the documentation


def test_the_documents_table_is_what_profiles_and_model_say():
    text = (DIRECTORY.parent.parent / "docs" / "boards.md").read_text()
    for name in names():
        profile = load(name)
        model = PowerModel(profile)
        ends = model.influence()
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        low, high = (f"{profile.clusters[0].opps[at].hz / 1e6:g}" for at in (0, -1))
        busy = model.error_watts(model.full_load(highest=True))
        assert cells == [
            f"`{name}`", str(profile.core_count), f"{low} to {high}",
            "public" if profile.clusters[0].opps[0].volts else "assumed", profile.sensor.meter,
            f"{ends.idle_min:.2f} ± {model.error_watts(model.idle_load()):.2f}",
            f"{ends.idle_processors:.2f}",
            f"{ends.full_min:.1f} to {ends.full_max:.1f} ± {busy:.1f}",
        ]  # fmt: skip
