"""For every key: the value that wins, its origin, and the message for a misspelt key or wrong
value."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.config import SETTINGS, faults, read

ROOT = Path(__file__).parents[2]
LAYERS = ("credential", "file", "10-first.toml", "20-second.toml", "environment", "flag")


def value(kind, n):
    """The `n`-th legal value of a kind, as TOML has it."""
    if kind == "path":
        return f"/path/{n}"
    if kind.startswith("list of"):
        return [f"/one/{n}", "/two"][: 1 + n % 2]
    if kind == "true or false":
        return n % 2 == 0
    if kind == "table":
        return {"n": n}
    if " | " in kind:
        choices = kind.split(" | ")
        return choices[n % len(choices)]
    if kind == "number, 0 to 1":
        return round(0.1 + n / 10, 1)
    words = {"text": f"text {n}", "HOST:PORT": f"[::1]:{9000 + n}", "URL": f"http://centre:{9 + n}"}
    return words.get(kind, 65_536 + n if kind == "size" else 1 + n)


def toml(given):
    return f"{{ n = {given['n']} }}" if isinstance(given, dict) else json.dumps(given)


def environ(given):
    """The same in a variable."""
    if isinstance(given, list):
        return ", ".join(given)
    return f"n = {given['n']}" if isinstance(given, dict) else str(given).replace("True", "true")


class Layers:
    """A key's values from one layer after the other, in a directory."""

    def __init__(self, directory, key):
        self.key, self.setting = key, SETTINGS[key]
        self.main, self.environ, self.flags = directory / "edged.toml", {}, {}
        self.credentials = directory / "credentials"
        for place in (self.credentials, directory / "edged.toml.d"):
            place.mkdir(exist_ok=True)
            for file in place.iterdir():
                file.unlink()
        self.main.write_text("# nothing\n")

    def put(self, layer, given):
        """Put a value into a layer; returns the expected origin."""
        section, name = self.key.split(".")
        if layer == "flag":
            self.flags[self.key] = ("--it", given)
            return "flag:--it"
        if layer == "environment":
            variable = f"EDGED_{section}__{name}".upper()
            self.environ[variable] = environ(given).replace("False", "false")
            return f"env:{variable}"
        file = self.main if layer == "file" else self.main.parent / "edged.toml.d" / layer
        file.write_text(f"\n[{section}]\n{name} = {toml(given)}\n")
        return f"file:{file}:3"

    def pass_credential(self):
        """Pass a credential as systemd does; its path is the value."""
        file = self.credentials / self.setting.credential
        file.write_text("secret")
        self.environ["CREDENTIALS_DIRECTORY"] = str(self.credentials)
        return str(file), f"credential:{self.setting.credential}"


@pytest.mark.parametrize("key", sorted(SETTINGS))
def test_the_values_of_these_tests_are_legal(key):
    kind = SETTINGS[key].kind
    for n in range(len(LAYERS)):
        kind.read(value(kind.name, n))


@given(
    st.sampled_from(sorted(SETTINGS)), st.sets(st.sampled_from(LAYERS)), st.permutations(range(6))
)
def test_the_last_of_defaults_credential_file_drop_ins_environment_and_flags_wins(
    tmp_path_factory, key, given_by, numbers
):
    layers = Layers(tmp_path_factory.getbasetemp(), key)
    setting = SETTINGS[key]
    expected, origin = setting.default, "default"
    for layer, n in zip(LAYERS, numbers, strict=True):
        if layer not in given_by:
            continue
        if layer != "credential":
            expected = value(setting.kind.name, n)
            origin = layers.put(layer, expected)
        elif setting.credential:
            expected, origin = layers.pass_credential()
    config, _ = read(layers.main, layers.environ, layers.flags)
    found = config.get(key)
    assert (list(found) if isinstance(found, tuple) else found) == (
        list(expected) if isinstance(expected, tuple) else expected
    )
    assert config.origin(key) == origin
    others = {row["key"] for row in config.values() if row["origin"] != "default"} - {key}
    assert not others


def misspelt(key, way, at):
    """One letter of the key's name is missing, twice there, or changes places with the next."""
    section, name = key.split(".")
    at %= len(name)
    if way == "less":
        name = name[:at] + name[at + 1 :]
    elif way == "twice":
        name = name[:at] + name[at] + name[at:]
    else:
        at = min(at, len(name) - 2)
        name = name[:at] + name[at + 1] + name[at] + name[at + 2 :]
    return f"{section}.{name}"


@given(
    st.sampled_from(sorted(SETTINGS)),
    st.sampled_from(["less", "twice", "swap"]),
    st.integers(0, 40),
)
def test_one_wrong_letter_is_told_with_the_key_that_was_meant(tmp_path_factory, key, way, at):
    wrong = misspelt(key, way, at)
    section, name = wrong.split(".")
    if name in {k.partition(".")[2] for k in SETTINGS}:
        return  # the name of a key: of another section it is as likely meant
    file = tmp_path_factory.getbasetemp() / "wrong.toml"
    file.write_text(f"[{section}]\n{name} = 1\n")
    (said,) = faults(file, {})
    assert str(said) == f"{wrong}: unknown key (did you mean {key}?) [file:{file}:2]"
    variable, meant = (f"EDGED_{k.replace('.', '__').upper()}" for k in (wrong, key))
    (said,) = faults(None, {variable: "1"})
    assert str(said) == f"{variable}: unknown variable (did you mean {meant}?)"


@pytest.mark.parametrize("key", sorted(SETTINGS))
def test_a_key_in_a_wrong_section_or_in_none_is_told_with_the_right_one(tmp_path, key):
    section, name = key.split(".")
    other = next(k for k in ("log", "device") if f"{k}.{name}" not in SETTINGS and k != section)
    file = tmp_path / "edged.toml"
    file.write_text(f"{name} = 1\n[{other}]\n{name} = 1\n")
    alone, within = map(str, faults(file, {}))
    assert key in alone and f"{name}: unknown " in alone
    assert key in within.partition("did you mean")[2] and f"{other}.{name}" in within


@pytest.mark.parametrize("key", sorted(SETTINGS))
def test_a_variable_that_lacks_an_underscore_is_no_silence(key):
    variable = f"EDGED_{key.replace('.', '__').upper()}"
    (said,) = faults(None, {variable.replace("__", "_"): "1"})
    assert f"did you mean {variable}?" in str(said)


@pytest.mark.parametrize("key", sorted(SETTINGS))
def test_a_value_of_another_type_is_told_with_its_line(tmp_path, key):
    section, name = key.split(".")
    file = tmp_path / "edged.toml"
    for wrong in ("1979-05-27", "[[1]]", '"\\u0000"', "nan", "-7"):
        file.write_text(f"[{section}]\n\n{name} = {wrong}\n")
        (said,) = faults(file, {})
        assert said.key == key and said.origin == f"file:{file}:3" and said.problem
