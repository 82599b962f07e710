"""The build of packages: wheels by tag, what shared objects need, equal bytes, the SBOM."""

import email
import io
import json
import lzma
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy
import pytest

DEBIAN = Path(__file__).parents[1] / "deploy/debian"
TIME_S = 946_684_800


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    """The folder's modules import each other by name, as scripts of one folder do."""
    monkeypatch.syspath_prepend(str(DEBIAN))


def made(path, seed):
    """A tree of two environments with an equal file, in an order of creation that `seed` turns."""
    files = {
        "opt/edged/lib/python3.10/site-packages/a.py": "a = 1\n",
        "opt/edged/lib/python3.11/site-packages/a.py": "a = 1\n",
        "opt/edged/lib/python3.11/site-packages/b.py": "b = 2\n",
        "opt/edged/lib/python3.11/site-packages/empty.py": "",
        "etc/edged/edged.toml": "[device]\n",
    }
    for name in sorted(files, reverse=bool(seed)):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(files[name])
    (path / "usr/bin").mkdir(parents=True)
    (path / "usr/bin/edged").symlink_to("/opt/edged/bin/edged")
    return path


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg")
def test_packages_of_equal_trees_are_the_same_bytes_and_dpkg_reads_them(tmp_path):
    import archive

    packages = []
    for seed in (0, 1):
        root = made(tmp_path / str(seed), seed)
        with archive.Zstd(tmp_path / "data", 1) as target:
            size_kib = archive.data(root, target, TIME_S, "./opt/edged/lib/")
        assert size_kib == 4 + 12, "a.py once, b.py, the link, edged.toml; directories"
        control = archive.control({"control": "Package: edged\n"}, (), TIME_S)
        with archive.Package(tmp_path / f"{seed}.deb", TIME_S) as package:
            package.member("control.tar.xz", control)
            package.member("data.tar.zst", tmp_path / "data")
        packages.append((tmp_path / f"{seed}.deb").read_bytes())
    assert packages[0] == packages[1]
    listed = subprocess.run(["dpkg-deb", "--contents", tmp_path / "0.deb"], capture_output=True,
                            text=True, check=True).stdout  # fmt: skip
    assert "./etc/edged/edged.toml" in listed and "link to ./opt/edged/lib" in listed
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(control))) as tar:
        assert tar.getnames() == [".", "./control"]


def test_what_is_equal_in_the_environments_is_stored_once(tmp_path):
    import archive

    target = io.BytesIO()
    archive.data(made(tmp_path, 0), target, TIME_S, "./opt/edged/lib/")
    with tarfile.open(fileobj=io.BytesIO(target.getvalue())) as tar:
        links = {entry.name: entry.linkname for entry in tar if entry.islnk()}
        names = tar.getnames()
        times = {entry.name[-4:]: entry.mtime for entry in tar if entry.isreg()}
    site = "./opt/edged/lib/python3.{}/site-packages/a.py"
    assert links == {site.format(11): site.format(10)}
    assert len({times["a.py"], times["b.py"], TIME_S}) == 3, "a file's time is that of its bytes"
    assert times["toml"] == TIME_S
    assert names.index(site.format(11)) == names.index(site.format(10)) + 1


def test_a_shared_object_names_what_it_needs_by_symbol():
    import elf

    object_ = next(Path(numpy.__file__).parent.glob("_core/_multiarray_umath*.so"))
    needs = elf.needs(object_.read_bytes())
    assert "libc.so.6" in needs.libraries
    assert any(symbol == "malloc" and text.startswith("GLIBC_2.") for symbol, text in needs.symbols)
    assert (2, 2) < elf.newest([needs], "GLIBC") <= (2, 35)
    architecture = next(name for name, machine in elf.MACHINES.items() if machine == needs.machine)
    bundled = {library for library in needs.libraries if "openblas" in library}
    assert list(elf.faults(needs, architecture, bundled)) == []
    assert bundled, "a bundled library that is not there is a fault"
    assert any("neither bundled" in fault for fault in elf.faults(needs, architecture, ()))


def test_a_newer_glibc_or_another_machine_is_a_fault():
    import elf

    symbols = {("f", "GLIBC_2.36"), ("g", "GLIBC_2.35"), ("h", "GLIBC_PRIVATE"), ("i", "OWN_9")}
    needs = elf.Needs(elf.MACHINES["arm64"], frozenset({"libm.so.6"}), frozenset(symbols))
    assert list(elf.faults(needs, "arm64", ())) == [
        "f needs GLIBC_2.36", "h needs GLIBC_PRIVATE",
    ]  # fmt: skip
    assert next(elf.faults(needs, "amd64", ())) == "machine 183, not amd64"
    for damaged in (b"", b"#!/bin/sh", b"\x7fELF\x02\x01" + b"\xff" * 100):
        with pytest.raises(elf.NotELF):
            elf.needs(damaged)


def wheel(directory, name, version, requires=(), files=()):
    path = directory / f"{name}-{version}-py3-none-any.whl"
    lines = [f"Name: {name}", f"Version: {version}", "License: MIT"]
    lines += [f"Requires-Dist: {text}" for text in requires]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join(lines) + "\n")
        for file, content in files:
            archive.writestr(file, content)
    return path


def test_wheels_are_resolved_for_another_machine_and_python(tmp_path):
    """Markers and extras are those of the target, versions those of the lock file."""
    import wheels

    wheel(tmp_path, "a", "1.0", ["b[x]>=1", "old; python_version < '3.11'", "w; os_name == 'nt'"])
    wheel(tmp_path, "b", "2.0", ["c; extra == 'x'", "d; extra == 'y'"])
    wheel(tmp_path, "b", "1.9")
    wheel(tmp_path, "c", "3.0")
    wheel(tmp_path, "old", "0.1")
    lock = "a==1.0\nb==2.0\nc==3.0 ; platform_machine == 'aarch64'\nold==0.1\n"
    for python, names in ("3.10", "a b c old"), ("3.11", "a b c"):
        found = wheels.Shelf(tmp_path, lock, "arm64", python).closure(["a"])
        assert [path.name.split("-")[0] for path in found] == names.split()
    with pytest.raises(wheels.Unresolved, match="'c'"):
        wheels.Shelf(tmp_path, lock, "amd64", "3.11").closure(["a"])


def test_no_tag_needs_a_newer_glibc_than_2_35():
    import wheels

    for architecture, machine in wheels.MACHINES.items():
        tags = wheels.platforms(architecture)
        assert tags[0] == f"manylinux_2_35_{machine}" and f"manylinux2014_{machine}" in tags
        assert all(tag.endswith(machine) for tag in tags)


def test_the_sbom_and_the_licences_name_every_wheel_once(tmp_path):
    import sbom

    text = [("a-1.0.dist-info/licenses/LICENSE", "MIT\n"), ("a.libs/libz-1.so.1", b"\x7f")]
    a = wheel(tmp_path, "a", "1.0", ["b"], text)
    b = wheel(tmp_path, "b", "2.0", (), [("b-2.0.dist-info/LICENSE", "MIT\n")])
    carried = {"3.10": [a, b], "3.11": [a, b]}
    said = [sbom.document(carried, "1+2", "arm64", TIME_S) for _ in range(2)]
    assert said[0] == said[1]
    bill = json.loads(said[0])
    assert (bill["bomFormat"], bill["metadata"]["component"]["version"]) == ("CycloneDX", "1+2")
    first, second = bill["components"]
    assert first["purl"] == "pkg:pypi/a@1.0" and len(first["hashes"][0]["content"]) == 64
    assert first["properties"][1]["value"] == "3.10 3.11"
    assert [inner["name"] for inner in first["components"]] == ["libz-1.so.1"]
    assert {d["ref"]: d["dependsOn"] for d in bill["dependencies"]}[first["bom-ref"]] == [
        second["bom-ref"]
    ]
    texts = sbom.licences(carried)
    assert texts.count("a 1.0: MIT\n") == 1 and texts.count("\nMIT\n") == 1
    assert "a 1.0, licenses/LICENSE\nb 2.0, LICENSE\n" in texts


TWO = "Redistribution and use in source and binary forms ..."


@pytest.mark.parametrize(
    ("said", "text", "licence"),
    [("License-Expression: MIT AND Zlib", "", ("expression", "MIT AND Zlib")),
     ("License: BSD", TWO, ("id", "BSD-2-Clause")),
     ("License: BSD", f"{TWO} Neither the name of", ("id", "BSD-3-Clause")),
     ("License: BSD", "", ("name", "BSD")), ("Name: a", "", ("name", "unknown")),
     ("Classifier: License :: OSI Approved :: MIT License", "", ("id", "MIT"))],
)  # fmt: skip
def test_a_licence_is_named_as_spdx_does(said, text, licence):
    import sbom

    assert sbom.licence(email.message_from_string(said + "\n"), text) == licence


def test_the_build_takes_only_what_a_device_runs():
    import tree

    site = "pyarrow/"
    for name in ("_flight.cpython-311-x86_64-linux-gnu.so", "libarrow_s3.so.2600", "tests/a.py"):
        assert tree.LEFT_OUT.search(site + name), name
    for name in ("lib.cpython-311-x86_64-linux-gnu.so", "libarrow.so.2600", "_fs.py",
                 "libarrow_substrait.so.2600", "libarrow_dataset.so.2600"):  # fmt: skip
        assert not tree.LEFT_OUT.search(site + name), name


def test_a_package_has_kernels_for_the_processors_of_its_architecture():
    import build
    import wheels
    from kernels.ahead.targets import TARGETS

    for architecture, names in build.TARGETS.items():
        assert {TARGETS[name].machine for name in names} == {wheels.MACHINES[architecture]}
    assert sorted(TARGETS) == sorted(name for names in build.TARGETS.values() for name in names)


def test_nothing_is_compiled_where_a_start_finds_objects():
    words = [sys.executable, "-m", "edged", "compile", "--if-missing"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("kernels are ready: ahead of time")
