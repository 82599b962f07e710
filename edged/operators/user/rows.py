"""`on_row(row, state, out)` as a numba kernel that runs it over the rows of a batch in one loop.

    kernel(columns, literals, outputs, start, stop, slots, rows, info) -> next

    columns   table         the input: `Batch.addresses()`
    literals  int64[n, 2]   address and size of each text
    outputs   table         a row for each column of each output; for text, values and offsets are
                            int64 arrays of an address and a size a row
    start, stop             places in `rows` to process
    slots     address       int32 a place: the record of the row's key
    rows      address       int64 a place: the row
    info      int64         `KernelInfo`, then three words for each output: rows, capacity, and the
                            address of the input row of each of its rows

A row's state and outputs count only once the row is done: its fields live in variables, its outputs
beyond the number of rows, and arrays are copied aside before; of a record of more than LOGGED_WORDS
the elements that a row writes are, one by one.  So a row in error changes nothing, and a row for
which an output has no room is done again once there is.

The kernel returns the first place that is not done: `stop`, or one where `full` says which output
lacks room.  An error is a Python exception; `at` is its place.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import NamedTuple

from edged.data.schema import BOOL, FLOAT32, FLOAT64, UINT64, DType, Field
from edged.documents import reader as doc
from edged.operators.user.body import MainBody, plain_arguments
from edged.operators.user.plain_rows import plain_row
from kernels.cpu.records import ADDRESS, I64
from kernels.cpu.records import field as word
from kernels.cpu.records import words as word_numbers

STEPS_MAX = 1_000_000
"""Passes of all loops in a row."""
ROW_OUTPUT_MAX = 4096
"""Rows that a row may give to an output in loops."""
LOGGED_WORDS = 32
"""A record of more words is not copied before each row: what is written is logged."""


class KernelInfo(NamedTuple):
    """What kernel and operator exchange."""

    at: I64 = word("place at hand")
    full: I64 = word("number of the output that lacks room, from 1; 0: none")
    records: ADDRESS = word("first record's state")
    stride: I64 = word("bytes from one record to the next")
    record: ADDRESS = word("state at hand")
    undo: ADDRESS = word("copy of the state at hand, or the log of its arrays (`logged`)")
    ticks: I64 = word("passes of loops in functions, in the row at hand")
    outputs: I64 = word("first output's rows")


INFO = word_numbers(KernelInfo)
HEAD = """\
import math as _e_math
import numpy as _e_np
from numba import njit as _e_njit
from edged.expressions import intrinsics as _e_m
from edged.expressions import kernel_runtime as _e_x

"""


@dataclass(frozen=True)
class GeneratedKernel:
    """A kernel's text, and where its lines come from."""

    text: str
    literals: tuple[bytes, ...]
    places: dict[int, tuple[int, int]] = field(compare=False)
    """By line of the text: line and column in the file."""
    bounded: tuple[int, ...] = ()
    """Rows that a row may add to each output at most; 0: any number."""


class RowBody(MainBody):
    """The body of `on_row`."""

    def prepare(self) -> None:
        """No columns are read yet, and no rows given."""
        self.literals: list[bytes] = []
        self.columns: set[str] = set()
        """Columns whose values are read."""
        self.emits = [0] * len(self.outputs)
        self.looped = [False] * len(self.outputs)
        self.row = ""

    def begin(self, function: ast.FunctionDef) -> None:
        """Take the names of the arguments."""
        names = plain_arguments(self, function)
        if len(names) not in (3, 4):
            what = f"{function.name} takes {len(names)} arguments"
            raise self.fault(function, what, f"def {function.name}(row, state, out, parameters)")
        self.row, self.state, self.out, self.parameters = [*names, ""][:4]

    # reading -------------------------------------------------------------------------------------

    def column(self, node: ast.Attribute) -> int:
        """The number of the column that `row.x` names."""
        if node.attr not in self.schema:
            has = f"it has {', '.join(self.schema.names)}"
            advice = doc.did_you_mean(node.attr, self.schema.names, otherwise=has)
            raise self.fault(node, f"the input has no column {node.attr}", advice)
        self.touched.add(node.attr)
        return self.schema.index(node.attr)

    def of_row(self, node: ast.expr) -> Field | None:
        """The column, where the expression is `row.x`."""
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == self.row
        ):
            return self.schema.fields[self.column(node)]
        return None

    def attribute(self, node: ast.Attribute, of: str) -> str:
        """The text of `row.x`, `state.x` or `parameters.x`."""
        if of == self.row:
            return self.value(node)
        if of == self.state:
            return self.state_field(node)
        if of == self.parameters and of:
            return self.constant(node, self.parameter(node))
        return super().attribute(node, of)

    def value(self, node: ast.Attribute) -> str:
        """The text of a number of the row."""
        k = self.column(node)
        f = self.schema.fields[k]
        if f.dtype.variable:
            advice = "compare it with == and !=, or give it to an output"
            raise self.fault(node, f"{f.name} is a {f.dtype.name}", advice)
        self.columns.add(f.name)
        text = f"_e_given_{k}(_e_r{k}, _e_p{k})" if f.nullable else f"_e_r{k}"
        return f"_e_x.signed({text})" if f.dtype is UINT64 else text

    def state_field(self, node: ast.Attribute) -> str:
        """The text of a field of the state."""
        known = self.declared.state
        if node.attr not in known:
            advice = doc.did_you_mean(node.attr, known, otherwise="declare it in class State")
            raise self.fault(node, f"the state {node.attr} is not declared", advice)
        if known[node.attr].size:
            raise self.fault(node, f"{node.attr} is an array", f"take {node.attr}[k]")
        self.stored.add(node.attr)
        return f"_e_s_{node.attr}"

    def other(self, node: ast.expr) -> str:
        """Elements of arrays of the state."""
        if isinstance(node, ast.Subscript):
            kind, place = self.element(node)
            return f"_e_m.load_{kind}(_e_rec, {place})"
        return super().other(node)

    def element(self, node: ast.Subscript) -> tuple[str, str]:
        """Type and word of an element of an array of the state."""
        of = node.value
        fine = isinstance(of, ast.Attribute) and isinstance(of.value, ast.Name)
        if not (isinstance(of, ast.Attribute) and fine and ast.unparse(of.value) == self.state):
            raise self.fault(node, "only arrays of the state have elements")
        found = self.declared.state.get(of.attr)
        if found is None or not found.size:
            advice = doc.did_you_mean(of.attr, self.declared.state, otherwise="declare an array")
            raise self.fault(node, f"the state has no array {of.attr}", advice)
        index = self.expression(node.slice)
        if self.steps_max:
            index = f"_e_x.at(_e_x.whole({index}), {found.size})"
        return found.type, f"{found.word} + {index}"

    def call(self, node: ast.Call) -> str:
        """`len` of an array, an output, or a function."""
        argument = node.args[0] if len(node.args) == 1 else None
        if isinstance(node.func, ast.Name) and node.func.id == "len":
            is_state = (
                isinstance(argument, ast.Attribute) and ast.unparse(argument.value) == self.state
            )
            of = argument.attr if isinstance(argument, ast.Attribute) and is_state else ""
            found = self.declared.state.get(of)
            if found is None or not found.size:
                raise self.fault(node, "len takes an array of the state", "len(state.recent)")
            return str(found.size)
        if isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == self.out:
            raise self.fault(node, "an output is a statement of its own", "put it on its own line")
        return super().call(node)

    def comparison(self, node: ast.Compare) -> str:
        """Also with None, and of texts."""
        if len(node.ops) == 1:
            op, right = node.ops[0], node.comparators[0]
            if isinstance(op, (ast.Is, ast.IsNot)):
                return self.is_none(node, isinstance(op, ast.Is))
            same = self.equal(node.left, right) if isinstance(op, (ast.Eq, ast.NotEq)) else ""
            if same:
                return same if isinstance(op, ast.Eq) else f"(not {same})"
            if isinstance(op, (ast.In, ast.NotIn)) and isinstance(right, ast.Tuple):
                each = [self.equal(node.left, one) for one in right.elts]
                if each and all(each):
                    found = f"({' or '.join(each)})"
                    return found if isinstance(op, ast.In) else f"(not {found})"
        return super().comparison(node)

    def equal(self, left: ast.expr, right: ast.expr) -> str:
        """The text of `left == right` where texts or columns with nulls are compared; else empty.

        A null equals no value.
        """
        fields = [f for f in (self.of_row(left), self.of_row(right)) if f is not None]
        there = [f"_e_p{self.schema.index(f.name)}" for f in fields if f.nullable]
        texts = self.text(left), self.text(right)
        if texts[0] and texts[1]:
            same = f"_e_x.same_text({', '.join([*texts[0], *texts[1]])})"
        elif there and not any(texts):
            same = f"({self.bare(left)} == {self.bare(right)})"
        else:
            return ""
        return f"({' and '.join([*there, same])})"

    def bare(self, node: ast.expr) -> str:
        """The text of an expression; of a column the value without a test for null."""
        f = self.of_row(node)
        if f is None or not f.nullable:
            return self.expression(node)
        self.columns.add(f.name)
        return f"_e_r{self.schema.index(f.name)}"

    def is_none(self, node: ast.Compare, is_null: bool) -> str:
        """The text of `row.x is None`."""
        f, right = self.of_row(node.left), node.comparators[0]
        if f is None or not (isinstance(right, ast.Constant) and right.value is None):
            raise self.fault(node, "only columns are compared with None", "row.x is None")
        if not f.nullable:
            return "False" if is_null else "True"
        k = self.schema.index(f.name)
        return f"(not _e_p{k})" if is_null else f"_e_p{k}"

    def text(self, node: ast.expr) -> tuple[str, str] | None:
        """Address and size, where the expression is a text."""
        f = self.of_row(node)
        value: object = None
        if f is not None and f.dtype.variable:
            k = self.schema.index(f.name)
            place = f"_e_c{k} + _e_m.load_int64(_e_f{k}, _e_i)"
            size = f"_e_m.load_int64(_e_f{k}, _e_i + 1) - _e_m.load_int64(_e_f{k}, _e_i)"
            return place, size
        if isinstance(node, ast.Constant):
            value = node.value
        elif isinstance(node, ast.Name):
            value = self.declared.constants.get(node.id)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == self.parameters != "":
            value = self.parameter(node)
        if not isinstance(value, (str, bytes)):
            return None
        data = value.encode() if isinstance(value, str) else value
        if data not in self.literals:
            self.literals.append(data)
        q = self.literals.index(data)
        return f"_e_t{q}", f"_e_z{q}"

    # writing -------------------------------------------------------------------------------------

    def assign_other(self, target: ast.expr, value: ast.expr, indent: int) -> None:
        """An assignment to a field or an element of the state."""
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == self.state:
            name = self.state_field(target)
            self.put(indent, f"{name} = {self.of_type(target.attr, self.expression(value))}")
        elif isinstance(target, ast.Subscript):
            kind, place = self.element(target)
            convert = "_e_x.whole" if kind == "int64" else "_e_x.real"
            text, words = self.expression(value), self.declared.words
            if words > LOGGED_WORDS:
                place = f"_e_x.logged(_e_undo, {words}, _e_rec, {place})"
            self.put(indent, f"_e_m.store_{kind}(_e_rec, {place}, {convert}({text}))")
        elif isinstance(target, ast.Attribute) and ast.unparse(target.value) == self.row:
            raise self.fault(target, "a row cannot be changed", "give the value to an output")
        else:
            super().assign_other(target, value, indent)

    def of_type(self, name: str, text: str) -> str:
        """A value as the type of a field."""
        kind = self.declared.state[name].type
        return f"_e_x.{ {'float64': 'real', 'bool': 'truth'}.get(kind, 'whole') }({text})"

    def statement(self, node: ast.stmt, indent: int) -> None:
        """Also an `if` without a branch (`edged.operators.user.plain_rows`)."""
        call = plain_row(self, node) if isinstance(node, ast.If) else None
        if isinstance(node, ast.If) and call is not None and isinstance(call.func, ast.Attribute):
            self.put(indent, f"_e_keep = {self.expression(node.test)}")
            self.emit(call, call.func.attr, indent, "1 if _e_keep else 0")
        else:
            super().statement(node, indent)

    def expression_statement(self, node: ast.Expr, indent: int) -> None:
        """A row of an output, or a call."""
        call = node.value
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and ast.unparse(call.func.value) == self.out
        ):
            self.emit(call, call.func.attr, indent)
            return
        super().expression_statement(node, indent)

    def emit(self, call: ast.Call, name: str, indent: int, counts: str = "1") -> None:
        """The lines that add a row to an output; it `counts` as one or as none."""
        j = self.output_number(call, name)
        output, given = self.outputs[j], self.arguments(call, name)
        self.emits[j] += 1
        if self.loops:
            self.looped[j] = True
            if self.steps_max:
                self.put(indent, f"if _e_n{j} - _e_b{j} >= {ROW_OUTPUT_MAX}:")
                self.put(indent + 1, f"raise RuntimeError('too many rows of {name}')")
            self.put(indent, f"if _e_n{j} >= _e_k{j}:")
            self.put(indent + 1, self.result(str(j + 1)))
        if self.declared.state:  # rows of several workers are put in order
            self.put(indent, f"_e_m.store_int64(_e_i{j}, _e_n{j}, _e_i)")
        for m, f in enumerate(output.schema):
            if f.name in given:
                self.store(f, given[f.name], f"{j}_{m}", f"_e_n{j}", indent)
            elif f.nullable:
                self.store_null(f, f"{j}_{m}", f"_e_n{j}", indent)
            else:
                raise self.fault(call, f"{name} lacks {f.name}", f"give {f.name}=…")
        self.put(indent, f"_e_n{j} += {counts}")

    def output_number(self, call: ast.Call, name: str) -> int:
        """The number of an output."""
        names = list(self.declared.outputs)
        if name not in names:
            advice = doc.did_you_mean(name, names, otherwise="declare it in class Outputs")
            raise self.fault(call, f"the output {name} is not declared", advice)
        return names.index(name)

    def arguments(self, call: ast.Call, name: str) -> dict[str, ast.expr]:
        """The values of an output's columns."""
        if call.args:
            raise self.fault(call, f"{name} takes columns by name", f"out.{name}(time=…)")
        known = self.declared.outputs[name].schema.names
        found = dict[str, ast.expr]()
        for word_ in call.keywords:
            if word_.arg not in known:
                advice = doc.did_you_mean(word_.arg or "**", known)
                raise self.fault(word_.value, f"{name} has no column {word_.arg}", advice)
            found[str(word_.arg)] = word_.value
        return found

    def store_null(self, f: Field, column: str, n: str, indent: int) -> None:
        """The lines that store a null."""
        self.put(indent, f"_e_m.store_uint8(_e_v{column}, {n}, 0)")
        if f.dtype.variable:
            self.put(indent, f"_e_m.store_int64(_e_z{column}, {n}, 0)")

    def store(self, f: Field, value: ast.expr, column: str, n: str, indent: int) -> None:
        """The lines that store a value of an output's column."""
        source = self.of_row(value)
        if isinstance(value, ast.Constant) and value.value is None:
            self.null_fits(f, value)
            self.store_null(f, column, n, indent)
        elif isinstance(value, ast.IfExp) and (_none(value.body) or _none(value.orelse)):
            self.null_fits(f, value)
            yes, no = value.body, value.orelse
            self.put(indent, f"if {self.expression(value.test)}:")
            self.store(f, yes, column, n, indent + 1)
            self.put(indent, "else:")
            self.store(f, no, column, n, indent + 1)
        elif source is not None and source.nullable and f.nullable:
            k = self.schema.index(source.name)
            self.put(indent, f"if _e_p{k}:")
            self.store_value(f, value, column, n, indent + 1)
            self.put(indent, "else:")
            self.store_null(f, column, n, indent + 1)
        else:
            self.store_value(f, value, column, n, indent)

    def null_fits(self, f: Field, node: ast.expr) -> None:
        """Refuse a null in a column that has none."""
        if not f.nullable:
            advice = f"declare {f.name}: {f.dtype.name} | None"
            raise self.fault(node, f"{f.name} cannot be null", advice)

    def store_value(self, f: Field, value: ast.expr, column: str, n: str, indent: int) -> None:
        """The lines that store a value that is not null."""
        if f.nullable:
            self.put(indent, f"_e_m.store_uint8(_e_v{column}, {n}, 1)")
        text = self.text(value)
        if f.dtype.variable or text:
            if text is None or not f.dtype.variable:
                kind = "a text" if text else "no text"
                advice = "give row.x of a text column, or a text"
                raise self.fault(value, f"{f.name} is {f.dtype.name}, the value {kind}", advice)
            source, place = self.of_row(value), text[0]
            if source is not None and source.nullable and not f.nullable:
                k = self.schema.index(source.name)
                place = f"_e_given_{k}({place}, _e_p{k})"
            self.put(indent, f"_e_m.store_int64(_e_o{column}, {n}, {place})")
            self.put(indent, f"_e_m.store_int64(_e_z{column}, {n}, {text[1]})")
            return
        source = self.of_row(value)
        if source is not None and source.dtype is f.dtype and not source.nullable:
            k, name = self.schema.index(source.name), memory_name(f.dtype)
            copied = f"_e_m.load_{name}(_e_c{k}, _e_i)"
            self.put(indent, f"_e_m.store_{name}(_e_o{column}, {n}, {copied})")
            return
        stored = stored_value(f.dtype, self.expression(value))
        self.put(indent, f"_e_m.store_{memory_name(f.dtype)}(_e_o{column}, {n}, {stored})")

    def returned(self, node: ast.Return, indent: int) -> None:
        """The end of the row."""
        if node.value is not None and not _none(node.value):
            raise self.fault(node, "on_row returns nothing", "give rows to outputs")
        self.put(indent, "RETURN")

    def result(self, status: str) -> str:
        """The statement that leaves the row; its counts do not matter where it is not done."""
        counts = "".join(f", _e_n{j}" for j in range(len(self.outputs)))
        return f"return ({status}{counts},)" if not counts else f"return ({status}{counts})"


def _none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def memory_name(dtype: DType) -> str:
    """The name of a type in the names of loads and stores."""
    return {"bool": "uint8", "timestamp": "int64"}.get(dtype.name, dtype.name)


def stored_value(dtype: DType, text: str) -> str:
    """A value as the carrying type of a column's store."""
    if dtype is BOOL:
        return f"1 if _e_x.truth({text}) else 0"
    if dtype is FLOAT64:
        return f"_e_x.real({text})"
    if dtype is FLOAT32:
        return f"_e_np.float32(_e_x.real({text}))"
    if dtype is UINT64:
        return f"_e_np.uint64(_e_x.fits(_e_x.whole({text}), 0, {2**63 - 1}))"
    if dtype.width == 8:
        return f"_e_x.whole({text})"
    bits = 8 * dtype.width
    least, most = (
        (0, 2**bits - 1) if dtype.name[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )
    return f"_e_x.fits(_e_x.whole({text}), {least}, {most})"


def loaded_value(dtype: DType, column: str) -> str:
    """A value of a row as bool, int64 or float64."""
    text = f"_e_m.load_{memory_name(dtype)}({column}, _e_i)"
    if dtype is BOOL:
        return f"({text} != 0)"
    if dtype is FLOAT32:
        return f"_e_np.float64({text})"
    return f"_e_np.int64({text})" if dtype is UINT64 else text
