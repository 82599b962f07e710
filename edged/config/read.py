"""Reads the configuration from its sources; a later source overrides an earlier one, key by key.

    default
    credential passed by systemd
    /etc/edged/edged.toml            the file
    /etc/edged/edged.toml.d/*.toml   drop-ins, by name
    EDGED_STORE__DIRECTORY=…         environment: `store.directory`
    --store …                        flags of `edged run`

A table, such as `energy.settings`, is one value and is replaced whole.  Relative paths count from
the directory of their file; in the environment and in flags from the working directory.  Each value
keeps its origin.

All faults are collected: `load` raises the first, `faults` returns all.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from edged.config.sections import (
    SECTIONS,
    SETTINGS,
    ApiSection,
    DeviceSection,
    EnergySection,
    LogSection,
    MetricsSection,
    RunSection,
    StoreSection,
    TelemetrySection,
    UplinkSection,
    credential,
)
from edged.errors import ConfigError
from edged.platform.loopback import is_loopback
from governors.suggestions import closest, did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

CONFIG = Path("/etc/edged/edged.toml")
"""The file of an installed daemon."""
FILE_BYTES_MAX = 1 << 20
MASK = "***"
_NAMES = sorted({key.split(".")[1] for key in SETTINGS})
_VARIABLE = re.compile(r"EDGED_([A-Z]+)__([A-Z_]+)")
_HEADER = re.compile(r"\s*\[\[?([^\[\]=]+)\]")
_KEY = re.compile(r"\s*([\w.\"' -]+?)\s*=")
_SECRET = ("password",)
"""Keys within tables whose values are masked in every output."""


class SettingError(ConfigError):
    """A wrong value: `key`, `origin` (`file:PATH:LINE`, `env:NAME`, `flag:--x`), `problem` and
    `advice`."""

    def __init__(self, key: str, origin: str, problem: str, advice: str = "") -> None:
        self.key, self.origin, self.problem, self.advice = key, origin, problem, advice
        at = f" [{origin}]" if origin else ""
        super().__init__(f"{key}: {problem}" + (f" ({advice})" if advice else "") + at)


@dataclass(frozen=True)
class SourcedValue:
    """A key's value and its origin."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Config:
    """All settings.  Immutable; a reload creates a new one."""

    device: DeviceSection = field(default_factory=DeviceSection)
    store: StoreSection = field(default_factory=StoreSection)
    run: RunSection = field(default_factory=RunSection)
    uplink: UplinkSection = field(default_factory=UplinkSection)
    energy: EnergySection = field(default_factory=EnergySection)
    api: ApiSection = field(default_factory=ApiSection)
    metrics: MetricsSection = field(default_factory=MetricsSection)
    telemetry: TelemetrySection = field(default_factory=TelemetrySection)
    log: LogSection = field(default_factory=LogSection)
    origins: Mapping[str, str] = field(default_factory=dict)
    """Origin by key; a key that is missing has its default."""

    @property
    def door(self) -> Path:
        """The control socket of the daemon."""
        return Path(self.run.door) if self.run.door else Path(self.store.directory) / "door"

    def get(self, key: str) -> Any:
        """The value of `section.name`."""
        section, name = key.split(".")
        return getattr(getattr(self, section), name)

    def origin(self, key: str) -> str:
        """Origin of the value of `section.name`; `default` where no source sets it."""
        return self.origins.get(key, "default")

    def values(self) -> list[dict[str, Any]]:
        """Every value with its origin, as JSON; secrets are masked."""
        rows = []
        for key in SETTINGS:
            shown, secret = _masked(self.get(key))
            rows.append({"key": key, "value": shown, "origin": self.origin(key), "secret": secret})
        return rows

    def changed(self, other: Config) -> list[str]:
        """The keys whose values differ in `other`."""
        return [key for key in SETTINGS if self.get(key) != other.get(key)]


def load(
    path: Path | str | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, tuple[str, Any]] | None = None,
) -> Config:
    """The configuration from the file (None: no file), `environ` (default: this process's) and
    flags (key to flag and value).

    Raises SettingError for the first fault; its message counts the others.
    """
    config, wrong = read(path, environ, flags)
    if len(wrong) > 1:
        more = f", and {len(wrong) - 1} more: `edged validate {path or ''}".rstrip() + "`"
        wrong[0].args = (f"{wrong[0]}{more}",)
    if wrong:
        raise wrong[0]
    return config


def faults(path: Path | str | None, environ: Mapping[str, str] | None = None) -> list[SettingError]:
    """All faults of the configuration."""
    return read(path, environ)[1]


def read(
    path: Path | str | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, tuple[str, Any]] | None = None,
) -> tuple[Config, list[SettingError]]:
    """The valid part of the configuration, and all faults."""
    environ = os.environ if environ is None else environ
    reader = _ConfigReader()
    reader.credentials(environ)
    for file in files(path):
        reader.file(file)
    reader.environment(environ)
    for key, (flag, value) in (flags or {}).items():
        reader.take(key, value, f"flag:{flag}", Path.cwd())
    return reader.config(), reader.faults + (
        _combination_faults(reader) if not reader.faults else []
    )


def files(path: Path | str | None) -> list[Path]:
    """The file and its drop-ins, in the order in which they apply."""
    if path is None:
        return []
    main = Path(path).absolute()
    return [main, *sorted((main.parent / f"{main.name}.d").glob("*.toml"))]


class _ConfigReader:
    """Collects values and faults; a later value replaces an earlier one."""

    def __init__(self) -> None:
        self.values: dict[str, SourcedValue] = {}
        self.faults: list[SettingError] = []

    def config(self) -> Config:
        """The values read; defaults elsewhere."""
        by_section: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
        for key, value in self.values.items():
            section, name = key.split(".")
            by_section[section][name] = value.value
        sections = {section: SECTIONS[section](**given) for section, given in by_section.items()}
        return Config(**sections, origins={key: v.origin for key, v in self.values.items()})

    def credentials(self, environ: Mapping[str, str]) -> None:
        for key, setting in SETTINGS.items():
            if file := credential(setting, environ):
                self.values[key] = SourcedValue(file, f"credential:{setting.credential}")

    def file(self, path: Path) -> None:
        """Read one TOML file."""
        text, document = self._document(path)
        for section, given in document.items():
            origin = _line_of(path, text, section)
            if section not in SECTIONS and not isinstance(given, dict):
                self._unknown_key(section, origin)
            elif section not in SECTIONS:
                self._refuse_unknown(section, "section", SECTIONS, origin)
            elif not isinstance(given, dict):
                advice = f"write [{section}] and its keys below"
                self.faults.append(SettingError(section, origin, "is not a table", advice))
            else:
                for name, value in given.items():
                    at = _line_of(path, text, section, name)
                    self.take(f"{section}.{name}", value, at, path.parent)

    def environment(self, environ: Mapping[str, str]) -> None:
        """Read variables such as EDGED_STORE__BYTES_MAX.

        Other variables that begin with EDGED_ are ignored, except a setting's name with one
        underscore missing, which is a fault.
        """
        named = {f"EDGED_{key.replace('.', '__').upper()}": key for key in SETTINGS}
        short = {variable.replace("__", "_"): variable for variable in named}
        for variable in sorted(environ):
            if variable in short:
                self._refuse_unknown(variable, "variable", [short[variable]], "")
            if not variable.startswith("EDGED_") or "__" not in variable:
                continue
            origin = f"env:{variable}"
            found = _VARIABLE.fullmatch(variable)
            key = f"{found[1]}.{found[2]}".lower() if found else variable
            if key not in SETTINGS:
                self._refuse_unknown(variable, "variable", named, "")
                continue
            try:
                value = SETTINGS[key].kind.from_text(environ[variable])
            except ValueError as problem:
                self.faults.append(SettingError(key, origin, str(problem)))
                continue
            self.take(key, value, origin, Path.cwd())

    def take(self, key: str, value: Any, origin: str, base: Path) -> None:
        """Check and keep one value; `base` is the directory that relative paths count from."""
        if key not in SETTINGS:
            self._unknown_key(key, origin)
            return
        kind = SETTINGS[key].kind
        try:
            checked = kind.read(value)
        except ValueError as problem:
            self.faults.append(SettingError(key, origin, str(problem)))
            return
        if kind.path:
            checked = _absolute(checked, base)
        self.values[key] = SourcedValue(checked, origin)

    def _document(self, path: Path) -> tuple[str, dict[str, Any]]:
        origin = f"file:{path}"
        try:
            data = path.read_bytes()
            if len(data) > FILE_BYTES_MAX:
                raise ValueError("is larger than 1 MiB")
            text = data.decode()
            return text, tomllib.loads(text)
        except OSError as problem:
            self.faults.append(SettingError(str(path), origin, f"cannot be read: "
                                            f"{problem.strerror or problem}"))  # fmt: skip
        except RecursionError:
            self.faults.append(SettingError(str(path), origin, "is nested too deeply"))
        except ValueError as problem:
            self.faults.append(SettingError(str(path), origin, f"is not TOML: {problem}"))
        return "", {}

    def _unknown_key(self, word: str, origin: str) -> None:
        """Record an unknown key, with a suggestion: keys of this name in other sections, else the
        nearest key of its section or of all, else every key of its section."""
        section, _, name = word.rpartition(".")
        own = [key for key in SETTINGS if key.startswith(f"{section}.")]
        called = name if _named(name) or closest(word, own) else closest(name, _NAMES, 0.8)
        if others := _named(called):
            advice = f"did you mean {' or '.join(others)}?"
            self.faults.append(SettingError(word, origin, "unknown key", advice))
        else:
            self._refuse_unknown(word, "key", own or SECTIONS, origin)

    def _refuse_unknown(self, word: str, what: str, known: Iterable[str], origin: str) -> None:
        self.faults.append(SettingError(word, origin, f"unknown {what}", did_you_mean(word, known)))


def _named(name: str) -> list[str]:
    """The keys of this name in all sections."""
    return [key for key in SETTINGS if key.split(".")[1] == name]


def _combination_faults(reader: _ConfigReader) -> list[SettingError]:
    """Faults of combinations of values that are each valid alone."""
    config, wrong = reader.config(), []

    def refuse(key: str, problem: str, advice: str) -> None:
        wrong.append(SettingError(key, config.origin(key), problem, advice))

    api = config.api
    if bool(api.tls_cert) != bool(api.tls_key):
        missing = "api.tls_key" if api.tls_cert else "api.tls_cert"
        refuse(missing, "is not set", "a certificate and its key belong together")
    if api.client_names and not api.client_ca:
        refuse("api.client_ca", "is not set", "api.client_names are names in certificates")
    if api.client_ca and not api.client_names:
        refuse("api.client_names", "is empty", "name the clients that are let in")
    if api.client_ca and not api.tls_cert:
        refuse("api.tls_cert", "is not set", "client certificates need TLS")
    if api.listen and not loopback(api.listen):
        if not api.tls_cert:
            refuse("api.listen", f"{api.listen} can be reached from elsewhere without TLS",
                   "set api.tls_cert and api.tls_key")  # fmt: skip
        if not (api.tokens_file or api.client_ca):
            refuse("api.listen", f"{api.listen} can be reached from elsewhere without credentials",
                   "set api.tokens_file, or api.client_ca and api.client_names")  # fmt: skip
    if config.uplink.ca and not config.uplink.url.startswith("https:"):
        refuse("uplink.ca", "certificates without TLS", "write uplink.url with https://")
    if _sends_plain_token(config.uplink):
        refuse("uplink.url", f"the token would cross the network to {config.uplink.url} without "
               "TLS, readable on the way", "write https://, or set uplink.plain_token = true on a "
               "network that you trust")  # fmt: skip
    return wrong


def _sends_plain_token(uplink: UplinkSection) -> bool:
    """Whether the device's token leaves the machine in plain text without being permitted to."""
    if not uplink.token_file or uplink.plain_token or not uplink.url.startswith("http:"):
        return False
    return not is_loopback(urlsplit(uplink.url).hostname or "")


def loopback(address: str) -> bool:
    """Whether `HOST:PORT` can be reached from this machine only."""
    return is_loopback(address.rpartition(":")[0])


def _absolute(value: str | Sequence[str], base: Path) -> Any:
    if isinstance(value, str):
        return os.path.normpath(base / value) if value else ""
    return tuple(os.path.normpath(base / part) for part in value)


def _masked(value: Any) -> tuple[Any, bool]:
    """The value as JSON with secrets masked, and whether it contains one."""
    if isinstance(value, Mapping):
        shown, found = {}, False
        for key, inner in value.items():
            hidden = key in _SECRET
            shown[key], within = (MASK, True) if hidden else _masked(inner)
            found |= within
        return shown, found
    if isinstance(value, (list, tuple)):
        parts = [_masked(inner) for inner in value]
        return [part for part, _ in parts], any(found for _, found in parts)
    return value, False


def _line_of(path: Path, text: str, section: str, name: str = "") -> str:
    """`file:PATH:LINE` of a section or of a key in it.

    The TOML parser keeps no positions, so lines are searched for headers and keys.  A line within a
    multi-line string that looks like one gives a wrong number.
    """
    target = [section, name] if name else [section]
    table: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        header, key = _HEADER.match(line), _KEY.match(line)
        if header:
            table = _parts(header[1])
        at = table + (_parts(key[1]) if key and not header else [])
        if (header or key) and at[: len(target)] == target:
            return f"file:{path}:{number}"
    return f"file:{path}"


def _parts(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]
