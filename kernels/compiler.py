"""numba and LLVM as kernels use them; nothing in a process that has its kernels ahead of time.

There (`kernels.ahead.active`) a kernel's module is imported for its constants and its compiled
functions.  Names of the compiler come from `kernels.ahead.absent`: what module level makes of them
is absent too.
"""

from __future__ import annotations

from typing import Any

from kernels import ahead

_names: Any
if ahead.active():
    from kernels.ahead import absent as _names
else:
    from kernels.ahead import present as _names
TypingError: Any = _names.TypingError
boolean: Any = _names.boolean
carray: Any = _names.carray
cgutils: Any = _names.cgutils
cpu_has: Any = _names.cpu_has
float32: Any = _names.float32
float64: Any = _names.float64
int64: Any = _names.int64
intrinsic: Any = _names.intrinsic
ir: Any = _names.ir
njit: Any = _names.njit
overload: Any = _names.overload
types: Any = _names.types
uint64: Any = _names.uint64
