"""The whole text of the kernel that runs `on_row` (`edged.operators.user.rows`)."""

from __future__ import annotations

from collections.abc import Mapping

from edged.data.schema import Schema
from edged.errors import JobError
from edged.operators.user.body import helpers
from edged.operators.user.declarations import Declarations, StateField, Value
from edged.operators.user.rows import (
    HEAD,
    INFO,
    LOGGED_WORDS,
    STEPS_MAX,
    GeneratedKernel,
    RowBody,
    loaded_value,
)
from kernels.cpu.columns import COLUMN

ON_ROW = "on_row"


def row_kernel(
    path: str, declared: Declarations, values: Mapping[str, Value], schema: Schema, trusted: bool
) -> GeneratedKernel:
    """The kernel of `on_row` over rows of `schema`.  Raises JobError with line and column."""
    function = declared.functions[ON_ROW]
    body = RowBody(path, declared, values, 0 if trusted else STEPS_MAX, schema)
    body.begin(function)
    body.block(function.body, 1)
    text = _Text(body)
    return text.write()


class _Text:
    """Puts the parts together; `places` follows the lines."""

    def __init__(self, body: RowBody) -> None:
        self._body = body
        self._lines: list[str] = HEAD.splitlines()
        self._places: dict[int, tuple[int, int]] = {}
        self._arrays = any(f.size for f in body.declared.state.values())
        self._loaded = [
            schema_k for schema_k, f in enumerate(body.schema) if f.name in body.touched
        ]

    def put(self, text: str, place: tuple[int, int] | None = None) -> None:
        """A line; the cache puts one line before the text."""
        self._lines.append(text)
        if place is not None:
            self._places[len(self._lines) + 1] = place

    def write(self) -> GeneratedKernel:
        """The kernel."""
        body = self._body
        for helper in helpers(body, body.calls):
            for line, place in zip(helper.lines, helper.places, strict=True):
                self.put(line, place)
            self.put("")
        self.given()
        self.row_function()
        self.main()
        bounded = tuple(
            0 if looped else count for looped, count in zip(body.looped, body.emits, strict=True)
        )
        text = "\n".join(self._lines) + "\n"
        return GeneratedKernel(text, tuple(body.literals), self._places, bounded)

    def given(self) -> None:
        """A function for each column with nulls that reads its value, or raises."""
        for k in self._loaded:
            f = self._body.schema.fields[k]
            if f.nullable:
                self.put('@_e_njit(error_model="python")')
                self.put(f"def _e_given_{k}(value, there):")
                self.put("    if not there:")
                text = f"row.{f.name} is null; test `row.{f.name} is None` before"
                self.put(f"        raise ValueError({text!r})")
                self.put("    return value")
                self.put("")

    def arguments(self) -> list[str]:
        """The names that the row function takes, as `main` has them."""
        body, names = self._body, ["_e_i", "_e_rec", "_e_undo", "_e_ticks"]
        for k in self._loaded:
            f = body.schema.fields[k]
            names.append(f"_e_c{k}")
            names += [f"_e_v{k}"] if f.nullable else []
            names += [f"_e_f{k}"] if f.dtype.variable else []
        for q in range(len(body.literals)):
            names += [f"_e_t{q}", f"_e_z{q}"]
        for j, output in enumerate(body.outputs):
            names += [f"_e_n{j}", f"_e_k{j}", f"_e_i{j}"]
            for m, f in enumerate(output.schema):
                names.append(f"_e_o{j}_{m}")
                names += [f"_e_v{j}_{m}"] if f.nullable else []
                names += [f"_e_z{j}_{m}"] if f.dtype.variable else []
        return names

    def row_function(self) -> None:
        """The function of one row."""
        body = self._body
        self.put('@_e_njit(nogil=True, error_model="python", forceinline=True)')
        self.put(f"def _e_row({', '.join(self.arguments())}):")
        for k in self._loaded:
            f = body.schema.fields[k]
            if f.nullable:
                self.put(f"    _e_p{k} = _e_m.load_uint8(_e_v{k}, _e_i) != 0")
            if f.name in body.columns:
                self.put(f"    _e_r{k} = {loaded_value(f.dtype, f'_e_c{k}')}")
        scalars = [f for f in body.declared.state.values() if f.name in body.stored]
        for s in scalars:
            self.put(f"    _e_s_{s.name} = {loaded_state(s)}")
        if body.steps_max:
            self.put("    _e_steps = 0")
        for j, looped in enumerate(body.looped):
            if looped:
                self.put(f"    _e_b{j} = _e_n{j}")
        for line, place in zip(body.lines, body.places, strict=True):
            if line.strip() == "RETURN":
                self.leave(line[: len(line) - len("RETURN")], scalars, place)
            else:
                self.put(line, place)
        self.leave("    ", scalars, None)
        self.put("")

    def leave(self, indent: str, scalars: list[StateField], place: tuple[int, int] | None) -> None:
        """The end of a row that is done."""
        for s in scalars:
            kind, text = stored_state(s)
            self.put(f"{indent}_e_m.store_{kind}(_e_rec, {s.word}, {text})", place)
        self.put(indent + self._body.result("0"), place)

    def main(self) -> None:
        """The loop over the rows."""
        body, at = self._body, INFO.outputs
        self.put('@_e_njit(cache=True, nogil=True, error_model="python")')
        self.put("def kernel(columns, literals, outputs, start, stop, slots, rows, info):")
        for k in self._loaded:
            for letter, column in (
                ("c", COLUMN.values), ("v", COLUMN.valid), ("f", COLUMN.offsets),
            ):  # fmt: skip
                self.put(f"    _e_{letter}{k} = columns[{k}, {column}]")
        for q in range(len(body.literals)):
            self.put(f"    _e_t{q}, _e_z{q} = literals[{q}, 0], literals[{q}, 1]")
        row = 0
        for j, output in enumerate(body.outputs):
            for n, letter in enumerate("nki"):
                self.put(f"    _e_{letter}{j} = info[{at + 3 * j + n}]")
            for m in range(len(output.schema)):
                for letter, column in (
                    ("o", COLUMN.values), ("v", COLUMN.valid), ("z", COLUMN.offsets),
                ):  # fmt: skip
                    self.put(f"    _e_{letter}{j}_{m} = outputs[{row}, {column}]")
                row += 1
        self.loop()

    def loop(self) -> None:
        """The loop itself."""
        body, at = self._body, INFO.outputs
        words = body.declared.words
        self.put(f"    _e_ticks = info.ctypes.data + {8 * INFO.ticks}")
        self.put(f"    _e_records, _e_stride = info[{INFO.records}], info[{INFO.stride}]")
        self.put(f"    _e_undo = info[{INFO.undo}]")
        self.put("    for _e_j in range(start, stop):")
        self.put(f"        info[{INFO.at}] = _e_j")
        for j in range(len(body.outputs)):
            self.put(f"        info[{at + 3 * j}] = _e_n{j}")
        self.put("        _e_i = _e_m.load_int64(rows, _e_j) if rows != 0 else _e_j")
        self.put("        _e_rec = _e_records")
        self.put("        if slots != 0:")
        self.put("            _e_rec += _e_stride * _e_m.load_int32(slots, _e_j)")
        if self._arrays:
            self.put(f"        info[{INFO.record}] = _e_rec")
            if words > LOGGED_WORDS:
                self.put("        _e_m.store_int64(_e_undo, 0, 0)")
            else:
                self.put(f"        _e_x.copy_words(_e_undo, _e_rec, {words})")
        self.put(f"        info[{INFO.ticks}] = 0")
        for j in range(len(body.outputs)):
            if not body.looped[j] and body.emits[j]:
                self.put(f"        if _e_n{j} + {body.emits[j]} > _e_k{j}:")
                self.put(f"            info[{INFO.full}] = {j + 1}")
                self.put("            return _e_j")
        counts = "".join(f", _e_m{j}" for j in range(len(body.outputs)))
        self.put(f"        _e_full{counts or ','} = _e_row({', '.join(self.arguments())})")
        if any(body.looped):
            self.put("        if _e_full != 0:")
            self.put(f"            info[{INFO.full}] = _e_full")
            self.put("            return _e_j")
        for j in range(len(body.outputs)):
            self.put(f"        _e_n{j} = _e_m{j}")
        for j in range(len(body.outputs)):
            self.put(f"    info[{at + 3 * j}] = _e_n{j}")
        self.put("    return stop")


def loaded_state(s: StateField) -> str:
    """A field of the record at hand."""
    if s.type == "float64":
        return f"_e_m.load_float64(_e_rec, {s.word})"
    text = f"_e_m.load_int64(_e_rec, {s.word})"
    return f"({text} != 0)" if s.type == "bool" else text


def stored_state(s: StateField) -> tuple[str, str]:
    """The type of a field in memory, and the value to store."""
    name = f"_e_s_{s.name}"
    if s.type == "float64":
        return "float64", name
    return "int64", f"1 if {name} else 0" if s.type == "bool" else name


def check_state_words(path: str, declared: Declarations) -> None:
    """Refuse records that are too large."""
    if declared.words > 8192:
        raise JobError(f"{path}.{declared.code.key}", "a record has more than 64 KiB of state")
