"""Registries of kinds: built-in modules of one package, and plug-ins of installed packages.

A kind registers itself when its module is imported.  Built-in modules lie in `package`.  A plug-in
is an entry point of `group` in an installed distribution; its name is the kind's name, its value
the module (or an object of it) that registers the kind:

    [project.entry-points."edged.operators"]
    scale = "edged_scale"

Guarantees:

1. `load` never raises.  A plug-in that fails leaves no kind behind; it is a `Failure`.
2. A name has one owner.  The second module that registers it is refused with DuplicateName, so the
   built-in kind stays.
3. Reading a registry (`get`, `in`, iteration) loads nothing.

Reference: packaging.python.org, "Entry points specification".
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import pkgutil
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


class DuplicateName(Exception):
    """A name that another module has registered; says both owners."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a kind comes from."""

    module: str
    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A plug-in that did not load."""

    group: str
    name: str
    origin: Origin
    problem: str

    def __str__(self) -> str:
        return f"{self.origin}: {self.name} ({self.origin.module}) does not load: {self.problem}"


class Registry(Mapping[str, T], Generic[T]):
    """The kinds of one group, by name."""

    def __init__(self, group: str, package: str, noun: str) -> None:
        """`package` holds the built-in modules, empty where there are none; `noun` names a kind in
        messages."""
        self.group, self.package, self.noun = group, package, noun
        self.failures: dict[str, Failure] = {}
        self._kinds: dict[str, T] = {}
        self._origins: dict[str, Origin] = {}
        self._plugin: Origin | None = None
        self._loaded = False
        self._lock = threading.RLock()

    def __getitem__(self, name: str) -> T:
        return self._kinds[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)

    def register(self, name: str, kind: T, module: str) -> None:
        """Add a kind.  Raises DuplicateName where another module owns the name."""
        origin = self._plugin or self._built_in(module)
        owner = self._origins.get(name)
        if owner is not None and owner.module != origin.module:
            raise DuplicateName(f"{self.noun} {name!r} is registered by {owner} ({owner.module})")
        self._kinds[name] = kind
        self._origins[name] = origin

    def origin(self, name: str) -> Origin:
        """The owner of a registered name.  Raises KeyError."""
        return self._origins[name]

    def load(self) -> Mapping[str, T]:
        """All kinds, each module imported once; failed plug-ins are in `failures`."""
        with self._lock:
            if not self._loaded:
                self._loaded = True
                self._load_built_in()
                for point in importlib.metadata.entry_points(group=self.group):
                    self._load_plugin(point)
        return self

    def why_missing(self, name: str) -> str:
        """Why a name that a plug-in promises has no kind; empty where none promises it."""
        failure = self.failures.get(name)
        return "" if failure is None else str(failure)

    def _built_in(self, module: str) -> Origin:
        inside = bool(self.package) and module.startswith(self.package)
        return Origin(module, "edged" if inside else "-", _version("edged") if inside else "-")

    def _load_built_in(self) -> None:
        if not self.package:
            return
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(getattr(package, "__path__", ())):
            importlib.import_module(f"{self.package}.{module.name}")

    def _load_plugin(self, point: importlib.metadata.EntryPoint) -> None:
        distribution = point.dist
        name = "?" if distribution is None else distribution.name
        version = "?" if distribution is None else distribution.version
        self._plugin = Origin(point.module, name, version)
        before, origins = dict(self._kinds), dict(self._origins)
        try:
            problem = self._import(point, self._plugin)
        finally:
            self._plugin = None
        if problem:
            self._kinds, self._origins = before, origins
            self.failures[point.name] = Failure(
                self.group, point.name, Origin(point.module, name, version), problem
            )

    def _import(self, point: importlib.metadata.EntryPoint, origin: Origin) -> str:
        """What keeps the plug-in from loading; empty where it loaded."""
        owner = self._origins.get(point.name)
        if owner is not None and owner != origin:
            return f"the name {point.name!r} belongs to {owner}"
        try:
            point.load()
        except KeyboardInterrupt:
            raise
        except BaseException as problem:  # SystemExit too: a plug-in ends no daemon
            sys.modules.pop(point.module, None)
            return f"{type(problem).__name__}: {problem}"
        if point.name not in self._kinds:
            return f"{point.module} registers no {self.noun} {point.name!r}"
        return ""


@functools.cache  # it reads files, and every kind that edged has asks for the same one
def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "?"
