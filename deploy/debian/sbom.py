"""What a package carries: an SBOM (CycloneDX 1.5, JSON), and the texts of the licences.

Both are made from the wheels alone: core metadata, licence files, SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import wheels

LICENCE = re.compile(r"[^/]+\.dist-info/(licenses/.+[^/]|(LICEN[CS]E|COPYING|NOTICE|AUTHORS)[^/]*)")
LIBRARY = re.compile(r"\.libs/[^/]+\.so[.\d]*$")
"""A library of another project that a wheel brings along."""
OSI = "License :: OSI Approved :: "
NAMES = {"MIT License": "MIT", "MIT": "MIT", "BSD-3-Clause": "BSD-3-Clause", "MPL-2.0": "MPL-2.0"}
"""SPDX identifiers of what older wheels say in words."""
BSD = ("BSD", "BSD License")
"""Words for several licences: the text says which."""
NAMESPACE = uuid.UUID("4cbb9b5e-6ad3-5d8b-9f0c-2b5d3f1f6a11")
"""Of serial numbers, which are a digest of the components."""
Wheels = Mapping[str, Iterable[Path]]
"""The wheels for each version of Python."""


def licence(found: Any, text: str) -> tuple[str, str]:
    """The licence that core metadata name: ("id" or "expression", SPDX), or ("name", words)."""
    if expression := found["License-Expression"]:
        return "expression" if " " in expression else "id", str(expression)
    words = [found["License"] or "", *(c.removeprefix(OSI) for c in classifiers(found))]
    for said in words:
        if said in NAMES:
            return "id", NAMES[said]
        if said in BSD and "Redistribution and use" in text:
            clauses = 3 if "either the name" in text else 2
            return "id", f"BSD-{clauses}-Clause"
    return "name", next(filter(None, words), "unknown").splitlines()[0]


def licence_of(wheel: Path) -> tuple[str, str]:
    """`licence` of a wheel: its first licence file is the project's own."""
    text = next((text for name, text in licence_texts(wheel) if "LICEN" in name), "")
    return licence(wheels.metadata(wheel), text)


def classifiers(found: Any) -> list[str]:
    """The classifiers of OSI's licences."""
    return [text for text in found.get_all("Classifier") or () if text.startswith(OSI)]


def document(carried: Wheels, version: str, architecture: str, time_s: int) -> str:
    """The SBOM of a package."""
    pythons: dict[Path, list[str]] = {}
    first: dict[str, Path] = {}
    for python, every in carried.items():
        for wheel in every:
            same = first.setdefault(wheel.name, wheel)
            pythons.setdefault(same, []).append(python)
    components = [component(wheel, of) for wheel, of in sorted(pythons.items(), key=_name)]
    root = {"type": "application", "bom-ref": f"pkg:deb/edged@{version}?arch={architecture}",
            "name": "edged", "version": version, "licenses": [{"license": {"id": "Apache-2.0"}}],
            "purl": f"pkg:deb/edged@{version}?arch={architecture}"}  # fmt: skip
    digest = json.dumps(components, sort_keys=True)
    made = datetime.fromtimestamp(time_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    found = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, root['purl'] + digest)}",
        "version": 1,
        "metadata": {"timestamp": made, "component": root},
        "components": components,
        "dependencies": [
            {"ref": root["bom-ref"], "dependsOn": sorted(c["bom-ref"] for c in components)},
            *dependencies(pythons),
        ],
    }
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


def component(wheel: Path, pythons: Iterable[str]) -> dict[str, Any]:
    """A wheel as a component; libraries that it brings along are components of it."""
    found = wheels.metadata(wheel)
    kind, said = licence_of(wheel)
    choice = {"expression": said} if kind == "expression" else {"license": {kind: said}}
    made: dict[str, Any] = {
        "type": "library", "bom-ref": reference(wheel), "name": found["Name"],
        "version": found["Version"], "purl": purl(found),
        "licenses": [choice],
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}],
        "properties": [{"name": "edged:wheel", "value": wheel.name},
                       {"name": "edged:pythons", "value": " ".join(pythons)}],
    }  # fmt: skip
    with zipfile.ZipFile(wheel) as archive:
        inner = [_file(archive, name, reference(wheel)) for name in sorted(archive.namelist())
                 if LIBRARY.search(name)]  # fmt: skip
    return {**made, "components": inner} if inner else made


def reference(wheel: Path) -> str:
    """The wheel's `bom-ref`: versions and builds of one distribution may lie side by side."""
    return f"wheel:{wheel.name}"


def purl(found: Any) -> str:
    """The package URL."""
    return f"pkg:pypi/{canonicalize_name(found['Name'])}@{found['Version']}"


def dependencies(pythons: Mapping[Path, Iterable[str]]) -> Iterator[dict[str, Any]]:
    """What each wheel requires of the wheels of the same Pythons."""
    names: dict[tuple[str, str], str] = {}
    for wheel, of in pythons.items():
        for python in of:
            names[canonicalize_name(wheels.metadata(wheel)["Name"]), python] = reference(wheel)
    for wheel, of in sorted(pythons.items(), key=_name):
        asked = [Requirement(t) for t in wheels.metadata(wheel).get_all("Requires-Dist") or ()]
        found = {names.get((canonicalize_name(a.name), python)) for a in asked for python in of}
        yield {"ref": reference(wheel), "dependsOn": sorted(filter(None, found))}


def licences(carried: Wheels) -> str:
    """The licence of every distribution in the package with its texts; equal texts stand once."""
    texts: dict[str, list[str]] = {}
    lines = []
    for wheel in sorted({w.name: w for every in carried.values() for w in every}.values(), key=str):
        found = wheels.metadata(wheel)
        title = f"{found['Name']} {found['Version']}"
        line = f"{title}: {licence_of(wheel)[1]}"
        if line not in lines:
            lines.append(line)
        for name, text in licence_texts(wheel):
            titles = texts.setdefault(text, [])
            if (place := f"{title}, {name}") not in titles:
                titles.append(place)
    bar = "=" * 100
    parts = ["\n".join(lines) + "\n"]
    parts += [f"{bar}\n" + "\n".join(titles) + f"\n{bar}\n\n{text.strip()}\n"
              for text, titles in texts.items()]  # fmt: skip
    return "\n".join(parts)


def licence_texts(wheel: Path) -> Iterator[tuple[str, str]]:
    """(file, text) of a wheel's licence files."""
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if LICENCE.fullmatch(name):
                text = archive.read(name).decode(errors="replace").replace("\r\n", "\n")
                yield name.partition("/")[2], text


def _file(archive: zipfile.ZipFile, name: str, of: str) -> dict[str, Any]:
    digest = hashlib.sha256(archive.read(name)).hexdigest()
    return {"type": "file", "bom-ref": f"{of}#{name}", "name": name.rpartition("/")[2],
            "hashes": [{"alg": "SHA-256", "content": digest}]}  # fmt: skip


def _name(item: tuple[Path, Iterable[str]]) -> str:
    return item[0].name.lower()
