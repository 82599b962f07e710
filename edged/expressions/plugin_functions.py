"""Scalar functions of plug-ins, compiled into the kernels of expressions.

    @function("dew_point", arguments=("DOUBLE", "DOUBLE"), returns="DOUBLE")
    def dew_point(temperature_c, humidity): ...

numba compiles the function in nopython mode; a generated kernel imports it and calls it once a row.
A NULL argument gives NULL without a call.  The function must be pure: equal calls are evaluated
once, and a replay must give the same bytes.  The digest of its module's source is part of the
kernel's source, so that a new version of the plug-in compiles a new kernel.

Types: BOOLEAN, BIGINT, DOUBLE, TIMESTAMP (int64 µs UTC).
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from edged.expressions import types as t
from edged.expressions.bind import Binder, call
from edged.expressions.tree import Call, Node, children, null_of
from kernels.compiler import njit

PLUGIN = "plugin"
"""The operation of a `Call` to a plug-in's function; `extra` is (module, attribute, digest)."""
TYPES = {kind.name: kind for kind in (t.BOOLEAN, t.BIGINT, t.DOUBLE, t.TIMESTAMP)}


def handler(
    function: Callable[..., Any], name: str, arguments: Sequence[str], returns: str
) -> tuple[Callable[[Binder, list[Any], str], Node], Any]:
    """What types a call of `function`, and its compiled form.

    Raises ValueError for a type that is not in TYPES, TypeError for a function that is not at the
    top of a module or takes another number of arguments.
    """
    takes, gives = [_type(name, one) for one in arguments], _type(name, returns)
    if function.__qualname__ != function.__name__:
        raise TypeError(f"{name}: {function.__qualname__} is not at the top of its module")
    if len(inspect.signature(function).parameters) != len(takes):
        raise TypeError(f"{name}: the function and `arguments` differ in number")
    source = Path(inspect.getfile(function)).read_bytes()
    digest = hashlib.sha256(source).hexdigest()[:16]
    extra = (function.__module__, function.__name__, digest)

    def bind(b: Binder, args: list[Any], what: str) -> Node:
        if len(args) != len(takes):
            b.fail(f"{what} takes {len(takes)} arguments, not {len(args)}")
        nodes = []
        for arg, to in zip(args, takes, strict=True):
            node = b.bind(arg)
            node = null_of(to) if node.type == t.NULL else node
            if node.type != to and not (node.type.numeric and to.numeric):
                b.fail(f"{what} takes {to}, not {node.type}", "CAST it")
            nodes.append(node if node.type == to else b.cast(node, to, what))
        return call(gives, PLUGIN, *nodes, extra=extra)

    return bind, njit(nogil=True, error_model="numpy")(function)


def alias(node: Call) -> str:
    """The name of a plug-in's function in generated code."""
    _, attribute, digest = node.extra
    return f"plugin_{attribute!s}_{digest!s}"


def plugin_imports(trees: Sequence[Node]) -> str:
    """The import lines of a kernel's plug-in functions, sorted."""
    used = {node for tree in trees for node in _calls(tree)}
    lines = {f"from {n.extra[0]!s} import {n.extra[1]!s} as {alias(n)}\n" for n in used}
    return "".join(sorted(lines))


def _calls(tree: Node) -> Iterator[Call]:
    if isinstance(tree, Call) and tree.op == PLUGIN:
        yield tree
    for child in children(tree):
        yield from _calls(child)


def _type(name: str, word: str) -> t.SqlType:
    if word not in TYPES:
        raise ValueError(f"{name}: {word!r} is not one of {', '.join(TYPES)}")
    return TYPES[word]
