"""User code, statement by statement, as text of a numba kernel.

A subset of Python: assignments, `if`, `for … in range(…)`, `while`, `return`, `raise`, arithmetic,
comparisons, functions of `math`, functions of the file.  All else is refused with line and column,
and with what to write in its place.  No pointer, no object and no memory of its own can be named,
so that the code reaches nothing but its row, its state and its outputs.

Unless the operator is trusted, every index is checked and every pass of a loop is counted: code
that loops for ever is an error in its row, the same in every run.
"""

from __future__ import annotations

import ast
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence

from edged.data.schema import Schema
from edged.documents import reader as doc
from edged.errors import JobError
from edged.operators.user.declarations import Declarations, Value

MATH = frozenset(
    [
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "ceil",
        "copysign",
        "cos",
        "cosh",
        "degrees",
        "erf",
        "erfc",
        "exp",
        "expm1",
        "fabs",
        "floor",
        "fmod",
        "gamma",
        "hypot",
        "isfinite",
        "isinf",
        "isnan",
        "ldexp",
        "lgamma",
        "log",
        "log10",
        "log1p",
        "log2",
        "pow",
        "radians",
        "sin",
        "sinh",
        "sqrt",
        "tan",
        "tanh",
        "trunc",
    ]
)
MATH_CONSTANTS = ("pi", "e", "tau", "inf", "nan")
BUILT_IN = frozenset(("abs", "min", "max", "round", "int", "float", "bool", "len"))
_BINARY: Mapping[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Pow: "**", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<",
    ast.RShift: ">>",
}  # fmt: skip
_UNARY: Mapping[type[ast.unaryop], str] = {
    ast.USub: "-", ast.UAdd: "+", ast.Not: "not ", ast.Invert: "~",
}  # fmt: skip
_COMPARED: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip


class Body:
    """Writes the lines of one function, with the place in the file that each comes from."""

    def __init__(
        self, path: str, declared: Declarations, values: Mapping[str, Value], steps_max: int
    ) -> None:
        self.path, self.declared, self.values = path, declared, values
        self.steps_max = steps_max
        """Most passes of loops; 0: not counted, and indices are not checked."""
        self.lines: list[str] = []
        self.places: list[tuple[int, int]] = []
        """Line and column in the file of each line."""
        self.locals: set[str] = set()
        self.calls: set[str] = set()
        """Functions of the file that are called."""
        self.loops = 0
        """Loops around the statement at hand."""
        self._at: ast.AST = ast.Pass(lineno=1, col_offset=0)

    # faults and lines ----------------------------------------------------------------------------

    def fault(self, node: ast.AST, what: str, do: str = "") -> JobError:
        """A fault at a node."""
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
        return self.declared.code.fault(self.path, line, column, what, do)

    def put(self, indent: int, text: str) -> None:
        """A line that comes from the statement at hand."""
        self.lines.append("    " * indent + text)
        self.places.append((getattr(self._at, "lineno", 1), getattr(self._at, "col_offset", 0) + 1))

    # statements ----------------------------------------------------------------------------------

    def block(self, statements: Sequence[ast.stmt], indent: int) -> None:
        """The lines of a block."""
        before = len(self.lines)
        for node in statements:
            self._at = node
            self.statement(node, indent)
        if len(self.lines) == before:
            self.put(indent, "pass")

    def statement(self, node: ast.stmt, indent: int) -> None:
        """The lines of a statement."""
        if isinstance(node, ast.Expr):
            self.expression_statement(node, indent)
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            self.assignment(node, indent)
        elif isinstance(node, ast.If):
            self.put(indent, f"if {self.expression(node.test)}:")
            self.block(node.body, indent + 1)
            if node.orelse:
                self.put(indent, "else:")
                self.block(node.orelse, indent + 1)
        elif isinstance(node, (ast.While, ast.For)):
            self.loop(node, indent)
        elif isinstance(node, ast.Return):
            self.returned(node, indent)
        elif isinstance(node, ast.Raise):
            self.raised(node, indent)
        elif isinstance(node, ast.Assert):
            self.put(indent, f"if not ({self.expression(node.test)}):")
            text = node.msg.value if isinstance(node.msg, ast.Constant) else ast.unparse(node.test)
            self.put(indent + 1, f"raise AssertionError({str(text)!r})")
        elif isinstance(node, (ast.Pass, ast.Break, ast.Continue)):
            self.put(indent, type(node).__name__.lower())
        else:
            name = type(node).__name__
            raise self.fault(node, f"{name} is not part of kernels", "see docs/operators.md")

    def expression_statement(self, node: ast.Expr, indent: int) -> None:
        """A call as a statement; texts are comments."""
        if isinstance(node.value, ast.Constant):
            return
        if isinstance(node.value, ast.Call):
            self.put(indent, self.expression(node.value))
            return
        raise self.fault(node, "has no effect", "assign it, or remove it")

    def assignment(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign, indent: int) -> None:
        """An assignment to a variable, or to what a subclass knows."""
        if node.value is None:
            raise self.fault(node, "has no value", "write name = value")
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if len(targets) != 1:
            raise self.fault(node, "assigns several names at once", "write one assignment each")
        target = targets[0]
        if isinstance(node, ast.AugAssign):
            reads = ast.copy_location(_read(target), target)
            value: ast.expr = ast.copy_location(ast.BinOp(reads, node.op, node.value), node)
        else:
            value = node.value
        if isinstance(target, ast.Name):
            self.put(indent, f"{self.variable(target)} = {self.expression(value)}")
        elif isinstance(target, ast.Tuple) and isinstance(value, (ast.Tuple, ast.Call)):
            names = [self.variable(one) for one in target.elts]
            self.put(indent, f"{', '.join(names)} = {self.expression(value)}")
        else:
            self.assign_other(target, value, indent)

    def assign_other(self, target: ast.expr, value: ast.expr, indent: int) -> None:
        """An assignment to something other than a variable."""
        raise self.fault(target, f"{ast.unparse(target)} cannot be assigned", "use a variable")

    def variable(self, target: ast.expr) -> str:
        """The name of a variable that is assigned."""
        if not isinstance(target, ast.Name):
            raise self.fault(target, "is no variable", "assign to names")
        self.check_free(target, target.id)
        self.locals.add(target.id)
        return target.id

    def check_free(self, node: ast.AST, name: str) -> None:
        """Refuse a name that stands for something else in the file, or in the kernel."""
        known = self.declared
        if name.startswith("_e_") or any(
            name in names for names in (known.constants, known.functions, known.imports)
        ):
            raise self.fault(node, f"{name} cannot be assigned", "use another name")

    def loop(self, node: ast.While | ast.For, indent: int) -> None:
        """A loop, whose passes are counted."""
        if node.orelse:
            raise self.fault(node, "else of a loop is not part of kernels", "use a variable")
        if isinstance(node, ast.While):
            self.put(indent, f"while {self.expression(node.test)}:")
        else:
            call = node.iter
            if not (isinstance(call, ast.Call) and _name(call.func) == "range"):
                advice = "write for k in range(...), and take the element by its index"
                raise self.fault(node.iter, "loops go over range(...) only", advice)
            arguments = ", ".join(self.expression(a) for a in call.args)
            self.put(indent, f"for {self.variable(node.target)} in range({arguments}):")
        self.loops += 1
        if self.steps_max:
            self.count_pass(indent + 1)
        self.block(node.body, indent + 1)
        self.loops -= 1

    def count_pass(self, indent: int) -> None:
        """Count a pass of a loop."""
        self.put(indent, "_e_steps += 1")
        self.put(indent, f"if _e_steps > {self.steps_max}:")
        self.put(indent + 1, "raise RuntimeError('too many passes of loops')")

    @abstractmethod
    def returned(self, node: ast.Return, indent: int) -> None:
        """A return."""

    def raised(self, node: ast.Raise, indent: int) -> None:
        """A raise: the row is in error, with this reason."""
        call = node.exc
        fine = isinstance(call, ast.Call) and len(call.args) == 1 and not call.keywords
        text = call.args[0] if isinstance(call, ast.Call) and fine else None
        if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
            raise self.fault(node, "is no error with a text", 'write raise ValueError("reason")')
        name = _name(call.func) if isinstance(call, ast.Call) else ""
        if name not in ("ValueError", "RuntimeError", "ArithmeticError"):
            raise self.fault(node, f"{name} cannot be raised", 'write raise ValueError("reason")')
        self.put(indent, f"raise {name}({text.value!r})")

    # expressions ---------------------------------------------------------------------------------

    def expression(self, node: ast.expr) -> str:
        """The text of an expression, in parentheses where it is compound."""
        if isinstance(node, ast.Constant):
            return self.constant(node, node.value)
        if isinstance(node, ast.Name):
            return self.name(node)
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            left, right = self.expression(node.left), self.expression(node.right)
            if isinstance(node.op, ast.Pow) and not _is_natural(node.right):
                left = f"_e_np.float64({left})"  # an integer to a negative power is no integer
            return f"({left} {_BINARY[type(node.op)]} {right})"
        if isinstance(node, ast.UnaryOp):
            return f"({_UNARY[type(node.op)]}{self.expression(node.operand)})"
        if isinstance(node, ast.BoolOp):
            word = " and " if isinstance(node.op, ast.And) else " or "
            return f"({word.join(self.expression(one) for one in node.values)})"
        if isinstance(node, ast.Compare):
            return self.comparison(node)
        if isinstance(node, ast.IfExp):
            test, yes, no = map(self.expression, (node.test, node.body, node.orelse))
            return f"({yes} if {test} else {no})"
        if isinstance(node, ast.Tuple):
            return f"({', '.join(self.expression(one) for one in node.elts)},)"
        if isinstance(node, ast.Call):
            return self.call(node)
        return self.other(node)

    def other(self, node: ast.expr) -> str:
        """The text of an expression that subclasses may know."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found = self.attribute(node, node.value.id)
            if found:
                return found
        what = f"{ast.unparse(node)[:40]} is not part of kernels"
        raise self.fault(node, what, "numbers, row, state, out and functions of math are")

    def attribute(self, node: ast.Attribute, of: str) -> str:
        """The text of `of.attr`; empty: it is unknown."""
        if self.declared.imports.get(of) == "math":
            if node.attr not in MATH_CONSTANTS:
                raise self.fault(node, f"math.{node.attr} is not part of kernels")
            return self.constant(node, getattr(math, node.attr))
        return ""

    def parameter(self, node: ast.Attribute) -> Value:
        """The value of a parameter."""
        if node.attr not in self.values:
            advice = doc.did_you_mean(node.attr, self.values, otherwise="declare it in Parameters")
            raise self.fault(node, f"the parameter {node.attr} is not declared", advice)
        return self.values[node.attr]

    def constant(self, node: ast.expr, value: object) -> str:
        """The text of a number."""
        if isinstance(value, float) and not math.isfinite(value):
            return (
                "_e_math.nan" if math.isnan(value) else f"({'-' if value < 0 else ''}_e_math.inf)"
            )
        if isinstance(value, (bool, int, float)):
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise self.fault(node, f"{value} has more than 64 bits")
            return f"({value!r})" if not isinstance(value, bool) and value < 0 else repr(value)
        if value is None:
            raise self.fault(node, "None has no place here", "compare with `is None`")
        advice = "texts are compared with == and !=, and given to outputs"
        raise self.fault(node, f"{value!r} has no place here", advice)

    def name(self, node: ast.Name) -> str:
        """The text of a name: a variable or a constant of the file."""
        if node.id in self.declared.constants:
            return self.constant(node, self.declared.constants[node.id])
        if node.id in self.locals:
            return node.id
        advice = doc.did_you_mean(node.id, [*self.locals, *self.declared.constants],
                                  otherwise="assign it before")  # fmt: skip
        raise self.fault(node, f"{node.id} is not defined", advice)

    def comparison(self, node: ast.Compare) -> str:
        """The text of a comparison."""
        parts = [self.expression(node.left)]
        for op, right in zip(node.ops, node.comparators, strict=True):
            if type(op) not in _COMPARED:
                what = "is, in and not in compare columns with None and texts only"
                raise self.fault(node, what, "use ==, !=, <, <=, > and >=")
            parts += [_COMPARED[type(op)], self.expression(right)]
        return f"({' '.join(parts)})"

    def call(self, node: ast.Call) -> str:
        """The text of a call of a function of Python, of math, or of the file."""
        name = self.called(node)
        if node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
            raise self.fault(node, "takes arguments by position only", "leave the names out")
        arguments = [self.expression(one) for one in node.args]
        known = self.declared.functions.get(name)
        if known is not None:
            self.calls.add(name)
            if len(known.args.args) != len(arguments):
                what = f"{name} takes {len(known.args.args)} arguments, not {len(arguments)}"
                raise self.fault(node, what)
            arguments.append("_e_ticks")
            name = f"_e_f_{name}"
        if name == "int":
            name = "_e_x.integer"
        if name.startswith("math."):
            name = f"_e_{name}"
        return f"{name}({', '.join(arguments)})"

    def called(self, node: ast.Call) -> str:
        """The name of the function that is called."""
        name, imports = _name(node.func), self.declared.imports
        if isinstance(node.func, ast.Attribute) and imports.get(_name(node.func.value)) == "math":
            name = f"math.{node.func.attr}"
        name = imports.get(name, name)
        if name.startswith("math."):
            if name.removeprefix("math.") not in MATH:
                advice = doc.did_you_mean(name.removeprefix("math."), MATH)
                raise self.fault(node, f"{name} is not part of kernels", advice)
            return name
        if name in self.declared.functions:
            return name
        if name not in BUILT_IN:
            shown = ast.unparse(node.func)[:40]
            advice = doc.did_you_mean(shown, [*BUILT_IN, *self.declared.functions],
                                      otherwise="define it in the file")  # fmt: skip
            raise self.fault(node, f"{shown} is no function of kernels", advice)
        return name


class MainBody(Body):
    """The body of the function that is called with rows of the input."""

    def __init__(
        self,
        path: str,
        declared: Declarations,
        values: Mapping[str, Value],
        steps_max: int,
        schema: Schema,
    ) -> None:
        super().__init__(path, declared, values, steps_max)
        self.schema = schema
        self.outputs = list(declared.outputs.values())
        self.touched: set[str] = set()
        """Columns of which anything is used."""
        self.stored: set[str] = set()
        """Fields of the state that are used."""
        self.state = self.out = self.parameters = ""
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Set what this kind of function needs besides."""


class HelperBody(Body):
    """A function of the file that others call: numbers in, numbers out."""

    def write(self, function: ast.FunctionDef) -> list[str]:
        """The lines of the function."""
        names = plain_arguments(self, function)
        self.locals |= set(names)
        self._at = function
        self.put(0, '@_e_njit(nogil=True, error_model="python")')
        self.put(0, f"def _e_f_{function.name}({', '.join([*names, '_e_ticks'])}):")
        self.block(function.body, 1)
        return self.lines

    def count_pass(self, indent: int) -> None:
        """Passes are counted in memory, over all calls in a row."""
        self.put(indent, f"_e_x.tick(_e_ticks, {self.steps_max})")

    def returned(self, node: ast.Return, indent: int) -> None:
        """A value."""
        if node.value is None:
            raise self.fault(node, "returns nothing", "return a value")
        self.put(indent, f"return {self.expression(node.value)}")


def plain_arguments(body: Body, function: ast.FunctionDef) -> list[str]:
    """The names of a function's arguments.  Raises JobError for others than plain ones."""
    a = function.args
    if (
        a.vararg
        or a.kwarg
        or a.kwonlyargs
        or a.defaults
        or a.posonlyargs
        or function.decorator_list
    ):
        what = "has arguments with defaults, stars or decorators"
        raise body.fault(function, f"{function.name} {what}", "name its arguments plainly")
    for one in a.args:
        body.check_free(one, one.arg)
    return [one.arg for one in a.args]


def helpers(body: Body, used: set[str]) -> Iterator[HelperBody]:
    """The functions of the file that are called, directly or by others; recursion is refused."""
    done, trail = set[str](), list[str]()
    found = list[HelperBody]()

    def visit(name: str) -> None:
        function = body.declared.functions[name]
        if name in trail:
            raise body.fault(function, f"{name} calls itself", "write a loop")
        if name in done:
            return
        trail.append(name)
        own = HelperBody(body.path, body.declared, body.values, body.steps_max)
        own.write(function)
        for other in sorted(own.calls):
            visit(other)
        trail.pop()
        done.add(name)
        found.append(own)

    for name in sorted(used):
        visit(name)
    return iter(found)


def _is_natural(node: ast.expr) -> bool:
    """Whether an exponent is a number from 0 on in the text."""
    return isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value >= 0


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _read(target: ast.expr) -> ast.expr:
    """The target of an assignment as an expression."""
    copied = ast.parse(ast.unparse(target), mode="eval").body
    for node in ast.walk(copied):
        ast.copy_location(node, target)
    return copied
