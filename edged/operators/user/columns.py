"""`on_batch(columns, state, out)` as a numba kernel: the rows of a beat as arrays.

`columns.x` is an array that cannot be written, `columns.valid.x` tells where a value stands,
`len(columns)` is the number of rows.  An output takes arrays of one length, `(values, valid)` for
columns with nulls.  There is one record of state.  The signature and the words of `info` are those
of `edged.operators.user.rows`; the last word is the room that an output lacks.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from edged.data.schema import BOOL, TIMESTAMP, DType, Field, Schema
from edged.documents import reader as doc
from edged.operators.user.body import MainBody, helpers, plain_arguments
from edged.operators.user.declarations import Declarations, Value
from edged.operators.user.row_kernel import loaded_state, stored_state
from edged.operators.user.rows import (
    HEAD,
    INFO,
    STEPS_MAX,
    GeneratedKernel,
    memory_name,
    stored_value,
)
from kernels.cpu.columns import COLUMN

ON_BATCH = "on_batch"
VALID = "valid"
NUMPY = frozenset(
    [
        "abs",
        "all",
        "any",
        "arange",
        "argmax",
        "argmin",
        "argsort",
        "ceil",
        "concatenate",
        "cos",
        "cumsum",
        "diff",
        "dot",
        "exp",
        "floor",
        "full",
        "interp",
        "isfinite",
        "isnan",
        "log",
        "log2",
        "log10",
        "max",
        "maximum",
        "mean",
        "median",
        "min",
        "minimum",
        "nonzero",
        "ones",
        "percentile",
        "power",
        "quantile",
        "round",
        "searchsorted",
        "sign",
        "sin",
        "sort",
        "sqrt",
        "std",
        "sum",
        "tan",
        "tanh",
        "unique",
        "var",
        "where",
        "zeros",
    ]
)
NUMPY_TYPES = ("float64", "int64", "bool_")
METHODS = frozenset(
    ["all", "any", "argmax", "argmin", "copy", "max", "mean", "min", "size", "std", "sum", "var"]
)


class ColumnBody(MainBody):
    """The body of `on_batch`."""

    def prepare(self) -> None:
        """The arguments have no names yet."""
        self.input = ""

    def begin(self, function: ast.FunctionDef) -> None:
        """Take the names of the arguments."""
        names = plain_arguments(self, function)
        if len(names) not in (3, 4):
            what = f"{function.name} takes {len(names)} arguments"
            advice = f"def {function.name}(columns, state, out, parameters)"
            raise self.fault(function, what, advice)
        self.input, self.state, self.out, self.parameters = [*names, ""][:4]

    def count_pass(self, indent: int) -> None:
        """The bound grows with the rows."""
        self.put(indent, "_e_steps += 1")
        self.put(indent, "if _e_steps > _e_limit:")
        self.put(indent + 1, "raise RuntimeError('too many passes of loops')")

    # reading -------------------------------------------------------------------------------------

    def field(self, node: ast.Attribute) -> tuple[int, Field]:
        """The column that a node names."""
        if node.attr not in self.schema:
            has = f"it has {', '.join(self.schema.names)}"
            advice = doc.did_you_mean(node.attr, self.schema.names, otherwise=has)
            raise self.fault(node, f"the input has no column {node.attr}", advice)
        k = self.schema.index(node.attr)
        if self.schema.fields[k].dtype.variable:
            raise self.fault(node, f"{node.attr} is a text", "write on_row for texts")
        self.touched.add(node.attr)
        return k, self.schema.fields[k]

    def attribute(self, node: ast.Attribute, of: str) -> str:
        """The text of `columns.x`, `state.x`, `parameters.x`, a type of numpy, or a size."""
        if of == self.input:
            return f"_e_a{self.field(node)[0]}"
        if of == self.state:
            return self.state_field(node)
        if of == self.parameters and of:
            return self.constant(node, self.parameter(node))
        if self.declared.imports.get(of) == "numpy" and node.attr in NUMPY_TYPES:
            return f"_e_np.{node.attr}"
        return super().attribute(node, of)

    def state_field(self, node: ast.Attribute) -> str:
        """The text of a field of the state."""
        known = self.declared.state
        if node.attr not in known:
            advice = doc.did_you_mean(node.attr, known, otherwise="declare it in class State")
            raise self.fault(node, f"the state {node.attr} is not declared", advice)
        self.stored.add(node.attr)
        return f"_e_s_{node.attr}"

    def other(self, node: ast.expr) -> str:
        """Elements and slices of arrays, `columns.valid.x`, and sizes."""
        of = ast.unparse(node.value) if isinstance(node, ast.Attribute) else ""
        if isinstance(node, ast.Attribute) and of == f"{self.input}.{VALID}":
            k, f = self.field(node)
            if not f.nullable:
                raise self.fault(node, f"{f.name} has no nulls", f"remove {VALID}.{f.name}")
            return f"_e_b{k}"
        if isinstance(node, ast.Subscript):
            return f"{self.expression(node.value)}[{self.index(node.slice)}]"
        if isinstance(node, ast.Attribute) and node.attr == "size" and of != self.input:
            return f"{self.expression(node.value)}.size"
        return super().other(node)

    def index(self, node: ast.expr) -> str:
        """The text of an index or a slice."""
        if isinstance(node, ast.Slice):
            ends = [self.expression(e) if e is not None else "" for e in (node.lower, node.upper)]
            step = f":{self.expression(node.step)}" if node.step is not None else ""
            return ":".join(ends) + step
        return self.expression(node)

    def call(self, node: ast.Call) -> str:
        """Also functions of numpy, methods of arrays, and the number of rows."""
        function = node.func
        if ast.unparse(node) == f"len({self.input})":
            return "_e_rows"
        if isinstance(function, ast.Attribute):
            of = self.declared.imports.get(ast.unparse(function.value))
            known = NUMPY if of == "numpy" else METHODS
            if of != "math" and (function.attr not in known or node.keywords):
                advice = doc.did_you_mean(function.attr, known, otherwise="no names of arguments")
                name = f"numpy.{function.attr}" if of else ast.unparse(function)
                raise self.fault(node, f"{name} is not part of kernels", advice)
            if of != "math":
                arguments = ", ".join(self.expression(one) for one in node.args)
                base = "_e_np" if of else self.expression(function.value)
                return f"{base}.{function.attr}({arguments})"
        return super().call(node)

    # writing -------------------------------------------------------------------------------------

    def assign_other(self, target: ast.expr, value: ast.expr, indent: int) -> None:
        """An assignment to a field of the state or to elements of an array."""
        text = self.expression(value)
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == self.state:
            name = self.state_field(target)
            found = self.declared.state[target.attr]
            if found.size:
                raise self.fault(target, f"{target.attr} is an array", f"{target.attr}[:] = …")
            kind = {"float64": "real", "bool": "truth"}.get(found.type, "whole")
            self.put(indent, f"{name} = _e_x.{kind}({text})")
        elif isinstance(target, ast.Subscript):
            self.put(indent, f"{self.other(target)} = {text}")
        else:
            super().assign_other(target, value, indent)

    def expression_statement(self, node: ast.Expr, indent: int) -> None:
        """Rows of an output, or a call."""
        call = node.value
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and ast.unparse(call.func.value) == self.out
        ):
            self.emit(call, call.func.attr, indent)
            return
        super().expression_statement(node, indent)

    def emit(self, call: ast.Call, name: str, indent: int) -> None:
        """The lines that add rows to an output."""
        names = list(self.declared.outputs)
        if name not in names:
            advice = doc.did_you_mean(name, names, otherwise="declare it in class Outputs")
            raise self.fault(call, f"the output {name} is not declared", advice)
        j, schema = names.index(name), self.declared.outputs[name].schema
        if call.args:
            raise self.fault(call, f"{name} takes columns by name", f"out.{name}(time=…)")
        given = {str(word.arg): word.value for word in call.keywords}
        for word in call.keywords:
            if word.arg not in schema:
                advice = doc.did_you_mean(word.arg or "**", schema.names)
                raise self.fault(word.value, f"{name} has no column {word.arg}", advice)
        for m, f in enumerate(schema):
            if f.name not in given:
                raise self.fault(call, f"{name} lacks {f.name}", f"give {f.name}=…")
            self.taken(f, given[f.name], m, indent)
        self.put(indent, f"_e_l = len(_e_w{0})")
        for m in range(1, len(schema)):
            self.put(indent, f"if len(_e_w{m}) != _e_l:")
            text = f"out.{name}: {schema.fields[m].name} has another length"
            self.put(indent + 1, f"raise ValueError({text!r})")
        self.put(indent, f"if _e_n{j} + _e_l > _e_k{j}:")
        self.put(indent + 1, self.result(str(j + 1), f"_e_n{j} + _e_l"))
        for m, f in enumerate(schema):
            self.filled(f, f"{j}_{m}", m, j, indent)
        self.put(indent, f"_e_n{j} += _e_l")

    def taken(self, f: Field, value: ast.expr, m: int, indent: int) -> None:
        """The lines that take the arrays of a column."""
        if f.dtype.variable:
            raise self.fault(value, f"{f.name} is a text", "write on_row for texts")
        source: Field | None = None
        if isinstance(value, ast.Attribute) and ast.unparse(value.value) == self.input:
            source = self.field(value)[1]
        valid = ""
        if f.nullable and isinstance(value, ast.Tuple) and len(value.elts) == 2:
            value, second = value.elts
            valid = self.expression(second)
        elif source is not None and source.nullable:
            if not f.nullable:
                advice = f"declare {f.name}: {f.dtype.name} | None"
                raise self.fault(value, f"{f.name} cannot be null", advice)
            valid = f"_e_b{self.schema.index(source.name)}"
        self.put(indent, f"_e_w{m} = {self.expression(value)}")
        if f.nullable:
            self.put(indent, f"_e_u{m} = {valid or f'_e_np.ones(len(_e_w{m}), _e_np.bool_)'}")

    def filled(self, f: Field, column: str, m: int, j: int, indent: int) -> None:
        """The loop that fills a column."""
        self.put(indent, "for _e_q in range(_e_l):")
        stored = stored_value(f.dtype, f"_e_w{m}[_e_q]")
        name = memory_name(f.dtype)
        self.put(indent + 1, f"_e_m.store_{name}(_e_o{column}, _e_n{j} + _e_q, {stored})")
        if f.nullable:
            there = f"1 if _e_u{m}[_e_q] else 0"
            self.put(indent + 1, f"_e_m.store_uint8(_e_v{column}, _e_n{j} + _e_q, {there})")

    def returned(self, node: ast.Return, indent: int) -> None:
        """The end."""
        if node.value is not None and ast.unparse(node.value) != "None":
            raise self.fault(node, "on_batch returns nothing", "give rows to outputs")
        self.put(indent, "RETURN")

    def result(self, status: str, need: str = "0") -> str:
        """The statement that leaves the function."""
        counts = "".join(f", _e_n{j}" for j in range(len(self.outputs)))
        return f"return ({status}, {need}{counts})"


def column_kernel(
    path: str, declared: Declarations, values: Mapping[str, Value], schema: Schema, trusted: bool
) -> GeneratedKernel:
    """The kernel of `on_batch` over rows of `schema`.  Raises JobError with line and column."""
    function = declared.functions[ON_BATCH]
    body = ColumnBody(path, declared, values, 0 if trusted else STEPS_MAX, schema)
    body.begin(function)
    body.block(function.body, 1)
    lines, places = HEAD.splitlines(), dict[int, tuple[int, int]]()
    lines.insert(0, "from numba import carray as _e_carray")
    own = zip(body.lines, body.places, strict=True)
    found = [(line, place) for h in helpers(body, body.calls)
             for line, place in [*zip(h.lines, h.places, strict=True), ("", (1, 1))]]  # fmt: skip
    checked = "" if trusted else ", boundscheck=True"
    found += [(line, (1, 1)) for line in _begin(body, checked)]
    for line, place in own:
        if line.strip() == "RETURN":
            indent = line[: len(line) - len("RETURN")]
            left = [*_stores(body), body.result("0")]
            found += [(indent + text, place) for text in left]
        else:
            found.append((line, place))
    found += [(f"    {stored}", (1, 1)) for stored in [*_stores(body), body.result("0")]]
    for line, place in found:
        lines.append(line)
        places[len(lines) + 1] = place
    lines += ["", *_main(body)]
    text = "\n".join(lines) + "\n"
    return GeneratedKernel(text, (), places, (0,) * len(body.outputs))


def _arguments(body: ColumnBody) -> list[str]:
    names = ["_e_rows", "_e_rec", "_e_ticks"]
    for k, f in enumerate(body.schema):
        if f.name in body.touched:
            names += [f"_e_c{k}", f"_e_v{k}"]
    for j, output in enumerate(body.outputs):
        names += [f"_e_n{j}", f"_e_k{j}"]
        for m in range(len(output.schema)):
            names += [f"_e_o{j}_{m}", f"_e_v{j}_{m}"]
    return names


def _begin(body: ColumnBody, checked: str) -> list[str]:
    """The function's head: arrays over columns and state."""
    lines = [f'@_e_njit(nogil=True, error_model="python"{checked})']
    lines.append(f"def _e_batch({', '.join(_arguments(body))}):")
    lines.append("    _e_steps = 0")
    lines.append(f"    _e_limit = {STEPS_MAX} * max(1, _e_rows)")
    for k, f in enumerate(body.schema):
        if f.name in body.touched:
            lines.append(f"    _e_a{k} = _e_x.fixed({_array(f.dtype, f'_e_c{k}', '_e_rows')})")
            if f.nullable:
                lines.append(f"    _e_b{k} = _e_x.fixed({_array(BOOL, f'_e_v{k}', '_e_rows')})")
    for s in body.declared.state.values():
        if s.name in body.stored:
            if s.size:
                kind = f"_e_np.{s.type}"
                at = f"_e_x.pointer(_e_rec + {8 * s.word})"
                lines.append(f"    _e_s_{s.name} = _e_carray({at}, {s.size}, {kind})")
            else:
                lines.append(f"    _e_s_{s.name} = {loaded_state(s)}")
    return lines


def _array(dtype: DType, at: str, size: str) -> str:
    kind = "bool_" if dtype is BOOL else "int64" if dtype is TIMESTAMP else dtype.numpy.name
    return f"_e_carray(_e_x.pointer({at}), {size}, _e_np.{kind})"


def _stores(body: ColumnBody) -> list[str]:
    """The lines that store the fields of the state."""
    found = []
    for s in body.declared.state.values():
        if s.name in body.stored and not s.size:
            kind, text = stored_state(s)
            found.append(f"_e_m.store_{kind}(_e_rec, {s.word}, {text})")
    return found


def _main(body: ColumnBody) -> list[str]:
    """The kernel around the function."""
    at, row = INFO.outputs, 0
    lines = ['@_e_njit(cache=True, nogil=True, error_model="python")',
             "def kernel(columns, literals, outputs, start, stop, slots, rows, info):",
             "    _e_rows = stop - start"]  # fmt: skip
    for k, f in enumerate(body.schema):
        if f.name in body.touched:
            lines.append(f"    _e_c{k} = columns[{k}, {COLUMN.values}]")
            lines.append(f"    _e_v{k} = columns[{k}, {COLUMN.valid}]")
    for j, output in enumerate(body.outputs):
        lines.append(f"    _e_n{j}, _e_k{j} = info[{at + 3 * j}], info[{at + 3 * j + 1}]")
        for m in range(len(output.schema)):
            lines.append(f"    _e_o{j}_{m} = outputs[{row}, {COLUMN.values}]")
            lines.append(f"    _e_v{j}_{m} = outputs[{row}, {COLUMN.valid}]")
            row += 1
    counts = "".join(f", _e_m{j}" for j in range(len(body.outputs)))
    lines += [
        f"    _e_rec = info[{INFO.records}]",
        f"    _e_ticks = info.ctypes.data + {8 * INFO.ticks}",
        f"    info[{INFO.ticks}], info[{INFO.at}] = 0, start",
        "    if _e_rec != 0:",
        f"        info[{INFO.record}] = _e_rec",
        f"        _e_x.copy_words(info[{INFO.undo}], _e_rec, {body.declared.words})",
        f"    _e_full, _e_need{counts} = _e_batch({', '.join(_arguments(body))})",
        "    if _e_full != 0:",
        f"        info[{INFO.full}] = _e_full",
        "        info[info.size - 1] = _e_need",
        "        return start",
        *(f"    info[{at + 3 * j}] = _e_m{j}" for j in range(len(body.outputs))),
        "    return stop",
    ]  # fmt: skip
    return lines
