"""The LLVM text of functions that Python calls: arguments to machine values and back.

A wrapper takes its arguments by the `METH_FASTCALL` protocol, checks them, releases the
interpreter lock while the kernel runs, and makes a Python number of the result.  It reads numpy's
array objects, whose layout is part of numpy's stable ABI (`PyArrayObject_fields`, `PyArray_Descr`):

    array   16 data | 24 dimensions | 32 shape | 40 strides | 56 descriptor | 64 flags
    descriptor   26 byte order | 28 type number

Arrays must be C-contiguous, aligned, writable, in the machine's byte order and of the kernel's
type; others raise TypeError, as in numba's closed dispatchers.  Numbers are converted as numba
converts them.

Kernels have numba's calling convention: a place for the result, one for an exception, then the
arguments; an array is seven or more of them (owner, parent, items, item size, data, shape,
strides).  Arrays have no owner here, and references are not counted: the caller holds the array.
An exception of a kernel becomes RuntimeError.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernels.ahead.library import ARRAY_TYPE

_SCALARS = {
    "int64": ("i64", "integer"),
    "uint64": ("i64", "unsigned"),
    "uint8": ("i8", "byte"),
    "boolean": ("i8", "truth"),
    "float64": ("double", "real"),
}
"""By type, its LLVM type and the helper that reads it."""
_ARRAYS = {
    "uint8": (2, 2, 1),
    "int32": (5, 5, 4),
    "uint32": (6, 6, 4),
    "int64": (7, 9, 8),
    "uint64": (8, 10, 8),
    "float64": (12, 12, 8),
}
"""By type, numpy's type numbers and the bytes of an item."""
_RESULTS = {
    "int64": ("i64", "PyLong_FromLongLong"),
    "uint64": ("i64", "PyLong_FromUnsignedLongLong"),
    "float64": ("double", "PyFloat_FromDouble"),
}
_ARGUMENT = re.compile(r"(\w+)(?:\[([^\]]*)\])?")


class UnsupportedType(Exception):
    """A kernel has arguments that no wrapper is written for."""


def parts_of(signature: str) -> tuple[str, list[tuple[str, int]]]:
    """The result's type, and type and dimensions of each argument; a scalar has none."""
    result, _, rest = signature.partition("(")
    found = []
    for kind, layout in _ARGUMENT.findall(rest.rstrip(")")):
        if layout and not layout.endswith("::1"):
            raise UnsupportedType(signature)
        if kind not in (_ARRAYS if layout else _SCALARS):
            raise UnsupportedType(signature)
        found.append((kind, layout.count(",") + 1 if layout else 0))
    if result != "void" and result not in _RESULTS:
        raise UnsupportedType(signature)
    return result, found


def machine_types(signature: str) -> list[str]:
    """The LLVM types of a kernel's parameters."""
    types = ["ptr", "ptr"]
    for kind, dimensions in parts_of(signature)[1]:
        if dimensions:
            types += ["ptr", "ptr", "i64", "i64", "ptr", *["i64"] * (2 * dimensions)]
        else:
            types.append(_SCALARS[kind][0])
    return types


def wrapper(name: str, symbol: str, signature: str) -> str:
    """The function `edged.NAME`, which calls the kernel `symbol`."""
    result, kinds = parts_of(signature)
    lines, values, after = _Body(), ["ptr %result", "ptr %raised"], "take"
    for k, (kind, dimensions) in enumerate(kinds):
        lines.add(f"{after}:", f"%p{k} = getelementptr ptr, ptr %arguments, i64 {k}",
                  f"%o{k} = load ptr, ptr %p{k}")  # fmt: skip
        after = f"after{k}"
        if dimensions:
            values += _array(lines, k, kind, dimensions, after)
        else:
            values += _scalar(lines, k, kind, after)
    messages = {
        "count": f"{name} takes {len(kinds)} arguments",
        "array": f"{name}: argument %d is no {_EXPECTED}",
        "fault": f"{name}: exception in compiled code",
    }
    texts = [f'@"{k}.{name}" = private constant {_text(text)}' for k, text in messages.items()]
    bad = [f"[ {k}, %check{k} ]" for k, (_, dimensions) in enumerate(kinds) if dimensions]
    wrong = [
        f"%number = phi i32 {', '.join(bad)}",
        "%unfit = load ptr, ptr @PyExc_TypeError",
        f'call ptr (ptr, ptr, ...) @PyErr_Format(ptr %unfit, ptr @"array.{name}", i32 %number)',
        "ret ptr null",
    ]
    body = [
        f'define ptr @"edged.{name}"(ptr %self, ptr %arguments, i64 %count) {{',
        *_entry(kinds, result),
        f"%enough = icmp eq i64 %count, {len(kinds)}",
        "br i1 %enough, label %take, label %few",
        *lines.all,
        f"{after}:",
        "%thread = call ptr @PyEval_SaveThread()",
        f'%status = call i32 @"{symbol}"({", ".join(values)})',
        "call void @PyEval_RestoreThread(ptr %thread)",
        "%good = icmp eq i32 %status, 0",
        "%none = icmp eq i32 %status, -2",
        "%done = or i1 %good, %none",
        "br i1 %done, label %answer, label %fault",
        "answer:",
        *_answer(result),
        "fault:",
        "%runtime = load ptr, ptr @PyExc_RuntimeError",
        f'call void @PyErr_SetString(ptr %runtime, ptr @"fault.{name}")',
        "ret ptr null",
        "few:",
        "%type = load ptr, ptr @PyExc_TypeError",
        f'call void @PyErr_SetString(ptr %type, ptr @"count.{name}")',
        "ret ptr null",
        *(["wrong:", *wrong] if bad else []),
        "refused:",
        "ret ptr null",
        "}",
    ]
    declared = f'declare i32 @"{symbol}"({", ".join(machine_types(signature))})'
    return "\n".join([*texts, declared, *body, ""])


def task(name: str, symbol: str) -> str:
    """The function `edged.NAME` that machine code calls; an exception gives 0."""
    return f"""
declare i32 @"{symbol}"(ptr, ptr, i64)
define i64 @"edged.{name}"(i64 %argument) {{
%result = alloca i64
%raised = alloca ptr
store i64 0, ptr %result
%status = call i32 @"{symbol}"(ptr %result, ptr %raised, i64 %argument)
%value = load i64, ptr %result
ret i64 %value
}}
"""


_EXPECTED = "writable C-contiguous array of the kernel's type"


class _Body:
    """The lines of a function's body."""

    def __init__(self) -> None:
        self.all: list[str] = []

    def add(self, *lines: str) -> None:
        """Append lines."""
        self.all += lines


def _entry(kinds: Sequence[tuple[str, int]], result: str) -> list[str]:
    kind = "i64" if result == "void" else _RESULTS[result][0]
    lines = [f"%result = alloca {kind}", "%raised = alloca ptr"]
    for k, (scalar, dimensions) in enumerate(kinds):
        if not dimensions:
            lines.append(f"%v{k} = alloca {_SCALARS[scalar][0]}")
    return lines


def _scalar(lines: _Body, k: int, kind: str, after: str) -> list[str]:
    machine, reader = _SCALARS[kind]
    lines.add(
        f"%f{k} = call i1 @edged.{reader}(ptr %o{k}, ptr %v{k})",
        f"br i1 %f{k}, label %read{k}, label %refused",
        f"read{k}:",
        f"%s{k} = load {machine}, ptr %v{k}",
        f"br label %{after}",
    )
    return [f"{machine} %s{k}"]


def _array(lines: _Body, k: int, kind: str, dimensions: int, after: str) -> list[str]:
    one, other, size = _ARRAYS[kind]
    lines.add(
        f"br label %check{k}",
        f"check{k}:",
        f"%f{k} = call i1 @edged.fits(ptr %o{k}, i32 {one}, i32 {other}, i32 {dimensions})",
        f"br i1 %f{k}, label %read{k}, label %wrong",
        f"read{k}:",
    )
    for field, at in (("data", 16), ("shape", 32), ("strides", 40)):
        lines.add(f"%{field}.at{k} = getelementptr i8, ptr %o{k}, i64 {at}",
                  f"%{field}{k} = load ptr, ptr %{field}.at{k}")  # fmt: skip
    items, places = "1", {"shape": [], "strides": []}  # type: tuple[str, dict[str, list[str]]]
    for field, found in places.items():
        for d in range(dimensions):
            lines.add(f"%{field}.at{k}.{d} = getelementptr i64, ptr %{field}{k}, i64 {d}",
                      f"%{field}{k}.{d} = load i64, ptr %{field}.at{k}.{d}")  # fmt: skip
            found.append(f"i64 %{field}{k}.{d}")
    for d in range(dimensions):
        lines.add(f"%items{k}.{d} = mul i64 {items}, %shape{k}.{d}")
        items = f"%items{k}.{d}"
    lines.add(f"br label %{after}")
    return ["ptr null", "ptr null", f"i64 {items}", f"i64 {size}", f"ptr %data{k}",
            *places["shape"], *places["strides"]]  # fmt: skip


def _answer(result: str) -> list[str]:
    if result == "void":
        return ["call void @Py_IncRef(ptr @_Py_NoneStruct)", "ret ptr @_Py_NoneStruct"]
    machine, maker = _RESULTS[result]
    return [
        f"%value = load {machine}, ptr %result",
        f"%made = call ptr @{maker}({machine} %value)",
        "ret ptr %made",
    ]


def _text(text: str) -> str:
    return f'[{len(text) + 1} x i8] c"{text}\\00"'


HELPERS = f"""
@{ARRAY_TYPE} = global i64 0
@PyExc_TypeError = external global ptr
@PyExc_RuntimeError = external global ptr
@_Py_NoneStruct = external global i8
declare ptr @PyErr_Format(ptr, ptr, ...)
declare void @PyErr_SetString(ptr, ptr)
declare ptr @PyErr_Occurred()
declare void @PyErr_Clear()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare i32 @PyType_IsSubtype(ptr, ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare i64 @PyLong_AsUnsignedLongLong(ptr)
declare double @PyFloat_AsDouble(ptr)
declare i32 @PyObject_IsTrue(ptr)
declare i32 @PyNumber_Check(ptr)
declare ptr @PyNumber_Long(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyLong_FromUnsignedLongLong(i64)
declare ptr @PyFloat_FromDouble(double)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)

define internal i1 @edged.fits(ptr %o, i32 %one, i32 %other, i32 %dimensions) {{
  %type.at = getelementptr i8, ptr %o, i64 8
  %type = load ptr, ptr %type.at
  %wanted = load ptr, ptr @{ARRAY_TYPE}
  %same = icmp eq ptr %type, %wanted
  br i1 %same, label %array, label %other.type
other.type:
  %sub = call i32 @PyType_IsSubtype(ptr %type, ptr %wanted)
  %derived = icmp ne i32 %sub, 0
  br i1 %derived, label %array, label %no
array:
  %nd.at = getelementptr i8, ptr %o, i64 24
  %nd = load i32, ptr %nd.at
  %flat = icmp eq i32 %nd, %dimensions
  %flags.at = getelementptr i8, ptr %o, i64 64
  %flags = load i32, ptr %flags.at
  %kept = and i32 %flags, 1281
  %behaved = icmp eq i32 %kept, 1281
  %kind.at = getelementptr i8, ptr %o, i64 56
  %kind = load ptr, ptr %kind.at
  %number.at = getelementptr i8, ptr %kind, i64 28
  %number = load i32, ptr %number.at
  %is.one = icmp eq i32 %number, %one
  %is.other = icmp eq i32 %number, %other
  %typed = or i1 %is.one, %is.other
  %order.at = getelementptr i8, ptr %kind, i64 26
  %order = load i8, ptr %order.at
  %native = icmp ne i8 %order, 62
  %a = and i1 %flat, %behaved
  %b = and i1 %typed, %native
  %c = and i1 %a, %b
  ret i1 %c
no:
  ret i1 false
}}

define internal i1 @edged.byte(ptr %o, ptr %to) {{
  %whole = alloca i64
  %good = call i1 @edged.integer(ptr %o, ptr %whole)
  %value = load i64, ptr %whole
  %low = trunc i64 %value to i8
  store i8 %low, ptr %to
  ret i1 %good
}}

define internal i1 @edged.truth(ptr %o, ptr %to) {{
  %value = call i32 @PyObject_IsTrue(ptr %o)
  %low = trunc i32 %value to i8
  store i8 %low, ptr %to
  %good = icmp sge i32 %value, 0
  ret i1 %good
}}

define internal i1 @edged.real(ptr %o, ptr %to) {{
  %value = call double @PyFloat_AsDouble(ptr %o)
  store double %value, ptr %to
  %odd = fcmp oeq double %value, -1.0
  br i1 %odd, label %ask, label %yes
ask:
  %error = call ptr @PyErr_Occurred()
  %good = icmp eq ptr %error, null
  ret i1 %good
yes:
  ret i1 true
}}
"""


def integers() -> str:
    """The helpers that read integers: of a Python `int` at once, of others through `int(...)`."""
    return "".join(
        f"""
define internal i1 @edged.{name}(ptr %o, ptr %to) {{
  %value = call i64 @{reader}(ptr %o)
  store i64 %value, ptr %to
  %odd = icmp eq i64 %value, -1
  br i1 %odd, label %ask, label %yes
ask:
  %error = call ptr @PyErr_Occurred()
  %clean = icmp eq ptr %error, null
  br i1 %clean, label %yes, label %check
check:
  %numeric = call i32 @PyNumber_Check(ptr %o)
  %text = icmp eq i32 %numeric, 0
  br i1 %text, label %no, label %convert
convert:
  call void @PyErr_Clear()
  %whole = call ptr @PyNumber_Long(ptr %o)
  %none = icmp eq ptr %whole, null
  br i1 %none, label %no, label %again
again:
  %second = call i64 @{reader}(ptr %whole)
  store i64 %second, ptr %to
  call void @Py_DecRef(ptr %whole)
  %other = call ptr @PyErr_Occurred()
  %good = icmp eq ptr %other, null
  ret i1 %good
yes:
  ret i1 true
no:
  ret i1 false
}}
"""
        for name, reader in (
            ("integer", "PyLong_AsLongLong"),
            ("unsigned", "PyLong_AsUnsignedLongLong"),
        )
    )


RUNTIME = """
declare ptr @malloc(i64)
declare void @free(ptr)
declare double @ldexp(double, i32)

define ptr @NRT_Allocate(i64 %size) {
  %made = call ptr @malloc(i64 %size)
  ret ptr %made
}
define void @NRT_Free(ptr %memory) {
  call void @free(ptr %memory)
  ret void
}
define ptr @NRT_MemInfo_alloc(i64 %size) {
  %made = call ptr @NRT_MemInfo_alloc_aligned(i64 %size, i32 16)
  ret ptr %made
}
define ptr @NRT_MemInfo_alloc_aligned(i64 %size, i32 %align) {
  %wide = zext i32 %align to i64
  %head = add i64 %wide, 64
  %all = add i64 %head, %size
  %made = call ptr @malloc(i64 %all)
  %failed = icmp eq ptr %made, null
  br i1 %failed, label %no, label %fill
fill:
  store i64 1, ptr %made
  %dtor.at = getelementptr i8, ptr %made, i64 8
  store ptr null, ptr %dtor.at
  %info.at = getelementptr i8, ptr %made, i64 16
  store ptr null, ptr %info.at
  %address = ptrtoint ptr %made to i64
  %ends = add i64 %address, %head
  %less = sub i64 0, %wide
  %aligned = and i64 %ends, %less
  %data = inttoptr i64 %aligned to ptr
  %data.at = getelementptr i8, ptr %made, i64 24
  store ptr %data, ptr %data.at
  %size.at = getelementptr i8, ptr %made, i64 32
  store i64 %size, ptr %size.at
  %allocator.at = getelementptr i8, ptr %made, i64 40
  store ptr null, ptr %allocator.at
  ret ptr %made
no:
  ret ptr null
}
define void @NRT_MemInfo_call_dtor(ptr %owner) {
  call void @free(ptr %owner)
  ret void
}
define double @numba_ldexp(double %x, i32 %exponent) {
  %made = call double @ldexp(double %x, i32 %exponent)
  ret double %made
}
"""
"""The parts of numba's runtime that compiled kernels call.  An owner is `MemInfo` of numba's
`nrt.cpp`: references, destructor, its argument, data, size, allocator; no kernel sets a destructor.
"""
