"""Kernels of a shared object give what the compiled functions give, and refuse what they refuse."""

import gc
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edged.platform import libraries
from edged.platform.libraries import loops
from kernels import ahead
from kernels.ahead import Fallback, build, linker, wrappers
from kernels.ahead.elf import LinkError
from kernels.ahead.library import Library, is_whole, sealed
from kernels.cpu import exact_sums, hash, pages, partition
from kernels.registry import KERNELS

NAMES = [
    name
    for module in (exact_sums, hash, pages, partition)
    for name in KERNELS
    if name.startswith(f"{module.__name__}.")
]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A library of the kernels of four modules."""
    path = tmp_path_factory.mktemp("library") / "few-0.so"
    build.build(path, [build._entry(KERNELS[name]) for name in NAMES], {"fast": 7})
    return Library(path)


def test_a_kernel_of_a_library_writes_the_same_bytes(library):
    values = np.random.default_rng(3).integers(-9, 9, 1000)
    one, other = (np.zeros(1000, np.uint64) for _ in range(2))
    arguments = (8, values.ctypes.data, 0, 0, 1000)
    name = "kernels.cpu.hash.hash_column"
    assert library.function(name)(*arguments, one) is None
    hash.hash_column(*arguments, other)
    assert (one == other).all() and one.any()
    assert library.fact("fast") == 7


def test_arrays_of_other_types_layouts_and_numbers_are_refused(library):
    call = library.function("kernels.cpu.hash.hash_column")
    out = np.zeros(8, np.uint64)
    read_only = out[:]
    read_only.flags.writeable = False
    swapped = out.astype(">u8")
    for wrong in (np.zeros(8), out[::2], out.reshape(2, 4), read_only, swapped, [1], None, 1):
        with pytest.raises(TypeError, match="argument 5 is no writable C-contiguous array"):
            call(8, out.ctypes.data, 0, 0, 0, wrong)
    with pytest.raises(TypeError, match="takes 6 arguments"):
        call(1)
    with pytest.raises(TypeError):
        call("text", out.ctypes.data, 0, 0, 0, out)
    with pytest.raises(OverflowError):
        call(1 << 63, out.ctypes.data, 0, 0, 0, out)
    assert not out.any()


def test_numbers_are_those_that_the_compiled_function_takes(library):
    call = library.function("kernels.cpu.hash.hash_column")
    values, out = np.arange(1, 5), np.zeros(4, np.uint64).view(np.ulonglong)
    for stop in (np.int32(4), np.uint64(4), np.float64(4.0), 4):
        out[:] = 0
        call(8, values.ctypes.data, False, np.False_, stop, out)
        assert out.all()


def test_a_function_outlives_the_object_of_its_library(library):
    call = Library(library.path).function("kernels.cpu.hash.hash_column")
    gc.collect()
    for _ in range(100):
        bytearray(32), Library(library.path)
    out = np.zeros(1, np.uint64)
    call(8, np.arange(1, 2).ctypes.data, 0, 0, 1, out)
    assert out[0]


def test_a_process_with_a_damaged_library_compiles_and_says_why(library, tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(ahead, "_CHOSEN", ahead.Chosen())
    assert not ahead.activate({}) and "imported already" in ahead.fallback().reason
    monkeypatch.delitem(sys.modules, "kernels.compiler")
    path, whole = ahead.library_path(ahead.KERNELS), library.path.read_bytes()
    assert path.parent == tmp_path
    assert not ahead.activate({}) and ahead.fallback().can_be_made
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for damaged in (b"", whole[:-1], whole[: len(whole) // 2], flipped, sealed(b"\x7fELF")):
        path.write_bytes(damaged)
        assert not ahead.activate({}) and ahead.form() == "numba"
        assert ahead.fallback().is_fault and ahead.fallback().reason
    path.write_bytes(whole)
    assert ahead.activate({}) and ahead.form() == "ahead of time"


def test_a_process_that_has_made_libraries_begins_again_once(monkeypatch):
    begun = []
    monkeypatch.setattr(os, "execv", lambda *words: begun.append(words))
    monkeypatch.setattr(ahead, "_CHOSEN", ahead.Chosen())
    monkeypatch.setenv(libraries._RESTARTED, "")
    monkeypatch.delenv(libraries._RESTARTED)
    for why in (Fallback("by choice"), Fallback("cannot be loaded", is_fault=True)):
        ahead.compile_instead(why)
        libraries.restart_with_libraries()
    assert not begun and libraries.fallback()[0] == "warning"
    ahead.compile_instead(Fallback("missing", can_be_made=True))
    libraries.restart_with_libraries()
    libraries.restart_with_libraries()
    assert begun == [(sys.executable, sys.orig_argv)]


def test_what_no_wrapper_is_written_for_is_refused():
    for signature in ("void(int64[:])", "void(complex128)", "int64[::1](int64)"):
        with pytest.raises(wrappers.UnsupportedType):
            wrappers.parts_of(signature)
    with pytest.raises(LinkError):
        linker.link(b"\x7fELF".ljust(64, b"\0"), [])


def test_a_process_with_libraries_has_no_compiler_and_one_without_takes_none():
    """The library is that of `edged compile`."""
    assert all(map(is_whole, ahead.library_paths(loops()).values())), "run edged compile"
    text = (
        "import sys; from edged.platform.libraries import use_libraries; print(use_libraries());"
        "import edged.daemon.daemon, edged.daemon.configuration; from kernels import registry;"
        "print(any(m.split('.')[0] in ('numba', 'llvmlite') for m in sys.modules));"
        "print(len(list(registry.compile_all())) > 20)"
    )
    for used, compiler in (("1", "False"), ("0", "True")):
        done = _python("-c", text, EDGED_AHEAD=used)
        loaded, found, count = done.split()
        assert (loaded, found) == (str(used == "1"), compiler)
        if used == "1":
            assert count == "True"


@pytest.mark.whole
def test_a_generated_kernel_without_a_library_is_loaded_by_the_compiler(tmp_path):
    text = (
        "import sys; from edged.platform.libraries import use_libraries; assert use_libraries();"
        "from edged.expressions import cache; from edged.expressions.program import Predicate;"
        "from edged.data.schema import INT64, Field, Schema;"
        "source = Predicate.of('c', 'k > 41', Schema.of([Field('k', INT64)])).source.text;"
        "print(type(cache.kernel(source)).__name__, 'numba' in sys.modules)"
    )
    cache = {"EDGED_CACHE": str(tmp_path / "cache")}
    assert _python("-c", text, **cache).split() == ["builtin_function_or_method", "False"]
    (library,) = (tmp_path / "cache").glob("*.so")
    library.write_bytes(library.read_bytes()[:-1])
    assert _python("-c", text, **cache).split() == ["builtin_function_or_method", "False"]
    assert is_whole(library)
    library.write_bytes(sealed(b"of another C library"))
    assert _python("-c", text, **cache).split() == ["CPUDispatcher", "True"]


@pytest.mark.whole
def test_every_property_of_kernels_holds_for_those_of_the_libraries():
    files = [
        str(file)
        for file in sorted(Path(__file__).parent.glob("test_*.py"))
        if not {"numba", "cuda", "build_all"} & set(re.findall(r"\w+", file.read_text()))
    ]
    _python("-m", "pytest", "-q", "-x", *files, EDGED_TEST_LIBRARY="1")


def _python(*arguments, **environment):
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
