"""Objects for processors by name: relocations of aarch64, and which object a start takes."""

import struct

import llvmlite.binding as llvm
import pytest

from kernels import ahead
from kernels.ahead import cross, elf, linker, targets
from kernels.ahead.library import sealed
from kernels.ahead.targets import TARGETS

TEXT = """
target triple = "aarch64-unknown-linux-gnu"
@table = internal constant [4 x double] [double 1.5, double 2.5, double 3.5, double 4.5]
@bytes = internal global [64 x i8] zeroinitializer
@words = internal global [8 x i64] [i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8]
@halves = internal global i16 7
@small = internal global i32 9
@entries = internal global [2 x ptr] [ptr @inner, ptr @words]
@outside_data = external global i64
declare i64 @outside(i64)
define internal i64 @inner(i64 %x) noinline {
  %at = getelementptr [8 x i64], ptr @words, i64 0, i64 %x
  %word = load volatile i64, ptr %at
  store volatile i8 3, ptr @bytes
  store volatile i64 %word, ptr getelementptr ([8 x i64], ptr @words, i64 0, i64 3)
  %h = load volatile i16, ptr @halves
  %s = load volatile i32, ptr @small
  store volatile <2 x i64> <i64 11, i64 77>, ptr @words
  ret i64 %word
}
define double @one(i64 %x) {
  %a = call i64 @inner(i64 %x)
  %b = call i64 @outside(i64 %a)
  %c = load volatile i64, ptr @outside_data
  %sum = add i64 %b, %c
  %at = getelementptr [4 x double], ptr @table, i64 0, i64 %sum
  %value = load double, ptr %at
  %f = load volatile ptr, ptr @entries
  %d = call i64 %f(i64 %c)
  ret double %value
}
define i64 @two(i64 %x) {
  %a = tail call i64 @outside(i64 %x)
  ret i64 %a
}
"""
SCALES = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4, 312: 3}


@pytest.fixture(scope="module")
def content():
    """A relocatable object for aarch64."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(TARGETS["armv8-a"].triple)
    machine = target.create_target_machine(cpu="generic", opt=2, reloc="pic", codemodel="small")
    return machine.emit_object(llvm.parse_assembly(TEXT))


def test_instructions_of_aarch64_reach_their_symbols(content):
    """Each place is decoded from the shared object's bytes."""
    link = linker._SharedObject(elf.read(content), ["one", "two"])
    image, kinds = link.made(), set()
    hidden = [s for s in link.given.symbols if s.name in ("one", "two", "inner")]
    assert len(hidden) == 3
    for k, one in link._used():
        place = link.at[k] + one.offset
        if link.given.sections[k].flags & elf.WRITE:
            continue  # the loader writes these
        (word,) = struct.unpack_from("<I", image, place)
        if one.kind in (311, 312):
            wanted = link._entry(one.symbol)
        elif one.symbol in link.stubs:
            wanted = link.stubs_at + 16 * link.stubs[one.symbol]
        else:
            wanted = link._address(one.symbol)
        assert decoded(word, one.kind, place) == seen(wanted + one.addend, one.kind), one
        kinds.add(one.kind)
    assert {275, 277, 283, 286, 311, 312} <= kinds
    for n in link.stubs.values():
        at = link.stubs_at + 16 * n
        page, load, jump = struct.unpack_from("<3I", image, at)
        entry = decoded(page, 275, at) + decoded(load, 286, at)
        assert entry in [link._entry(symbol) for symbol in link.stubs] and jump == 0xD61F0220


def decoded(word, kind, place):
    """What an instruction says of an address."""
    if kind in (275, 311):  # adrp
        assert word & 0x9F000000 == 0x90000000
        pages = signed(word >> 5 & 0x7FFFF, 19) << 2 | word >> 29 & 3
        return (place & ~0xFFF) + (pages << 12)
    if kind in (282, 283):  # b, bl
        assert word & 0x7C000000 == 0x14000000
        return place + (signed(word & 0x3FFFFFF, 26) << 2)
    return (word >> 10 & 0xFFF) << SCALES[kind]


def seen(address, kind):
    """The part of an address that a relocation has."""
    if kind in (275, 311):
        return address & ~0xFFF
    return address if kind in (282, 283) else address & 0xFFF


def signed(value, bits):
    return value - (1 << bits) if value >> bits - 1 else value


def test_dynamic_relocations_of_aarch64_name_what_the_loader_fills(content):
    given = elf.read(content)
    image, undefined = linker.link(content, ["one", "two"])
    assert undefined and set(undefined) == {"outside", "outside_data"}
    header = elf.HEADER.unpack_from(image)
    assert (header[1], header[2]) == (elf.SHARED_OBJECT, elf.AARCH64)
    link = linker._SharedObject(given, ["one", "two"])
    link.made()
    found = sorted(kind for _, kind, _, _ in link.dynamic)
    assert found.count(1027) == 2 and set(found) == {1025, 1027}


def test_a_start_takes_the_best_object_that_the_processor_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(targets, "_flags", lambda: TARGETS["x86-64-v3"].flags | {"fpu"})
    monkeypatch.setattr(targets.platform, "machine", lambda: "x86_64")
    assert targets.fitting() == ["x86-64-v3", "x86-64-v2"]
    monkeypatch.setattr(targets, "_flags", lambda: set(TARGETS["x86-64-v2"].flags))
    assert targets.fitting() == ["x86-64-v2"]
    monkeypatch.setattr(targets.platform, "machine", lambda: "aarch64")
    assert targets.fitting() == ["armv8-a"]
    made = {name: ahead.target_paths(name, {}, tmp_path)[ahead.KERNELS] for name in TARGETS}
    assert len(set(made.values())) == len(TARGETS)
    made["armv8-a"].write_bytes(sealed(b"code"))
    assert list(cross.build_for("armv8-a", {}, tmp_path)) == []
    with pytest.raises(RuntimeError, match="imported already"):
        list(cross.build_for("x86-64-v2", {}, tmp_path))
