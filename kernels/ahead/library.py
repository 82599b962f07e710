"""A shared object with kernels, as functions that Python calls.

Each kernel is a C function of the `METH_FASTCALL` protocol (`kernels.ahead.wrappers`), which
becomes a built-in function here.  A library stays loaded until the process ends.

The file ends with the SHA-256 of its content: the loader would map a truncated object and fail when
its code is first read.
"""

from __future__ import annotations

import ctypes
import hashlib
from pathlib import Path
from typing import Any

import numpy as np

FASTCALL = 0x80
"""METH_FASTCALL."""
ARRAY_TYPE = "edged.ndarray"
"""The word of a library that holds the address of numpy's array type."""


class _Method(ctypes.Structure):
    """`PyMethodDef`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_METHODS: list[_Method] = []
"""What functions refer to: as long as the process lives, as they do."""
_make = ctypes.pythonapi.PyCFunction_NewEx
_make.argtypes = (ctypes.POINTER(_Method), ctypes.c_void_p, ctypes.c_void_p)
_make.restype = ctypes.py_object


def sealed(content: bytes) -> bytes:
    """The file of a shared object."""
    return content + hashlib.sha256(content).digest()


def is_whole(path: Path) -> bool:
    """Whether a file is there and as it was written."""
    try:
        data = path.read_bytes()
    except OSError:
        return False
    size = hashlib.sha256().digest_size
    return len(data) > size and sealed(data[:-size]) == data


class Library:
    """An opened library, which is whole.  Raises OSError where it cannot be loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.PyDLL(str(path))
        ctypes.c_int64.in_dll(self._library, ARRAY_TYPE).value = id(np.ndarray)

    def function(self, name: str) -> Any:
        """A kernel.  Raises KeyError where there is none of that name."""
        method = _Method(name.encode(), self.address(name), FASTCALL, None)
        _METHODS.append(method)
        return _make(ctypes.byref(method), None, None)

    def address(self, name: str) -> int:
        """The address of a function.  Raises KeyError where there is none of that name."""
        try:
            found = ctypes.cast(getattr(self._library, f"edged.{name}"), ctypes.c_void_p).value
        except AttributeError:
            raise KeyError(name) from None
        return found or 0

    def fact(self, name: str) -> int:
        """A constant that the build noted."""
        return int(ctypes.c_int64.in_dll(self._library, f"edged.fact.{name}").value)
