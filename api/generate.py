"""`python -m api.generate`: docs/openapi.json, and from it the client edged/rest/_methods.py.

Both files are committed; tests/api/test_rest.py fails when they are out of date.  The client has a
method for each operation; the types of its answers are those of the API (`edged.rest.answers`).
Ready-made generators write hundreds of files for such a document, with dependencies that a device
does not need.

An operation becomes a method named for its operationId.  Its parameters and the fields of its JSON
body become arguments; any other body becomes `body` and `content_type`.  A method whose operation
may answer 202 polls until it has ended and calls `on_progress` with each state.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from api.app import routes

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "openapi.json"
METHODS = ROOT / "edged" / "rest" / "_methods.py"
_HEAD = '''\
"""Written by `python -m api.generate` from docs/openapi.json: do not edit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from edged.rest.transport import Transport, path_of

if TYPE_CHECKING:  # importing pydantic takes 0.2 s of a command
    from edged.rest.answers import %s


class Methods(Transport):
    """One method for each operation of the API."""
'''
_PLAIN = {"integer": "int", "number": "float", "string": "str", "boolean": "bool", "null": "None"}


def document() -> str:
    """The OpenAPI document's text."""
    return json.dumps(routes().openapi(), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def client(text: str) -> str:
    """The text of the client's module for an OpenAPI document."""
    made = json.loads(text)
    schemas = made["components"]["schemas"]
    methods = "\n".join(
        _method(path, verb, operation, schemas)
        for path, operations in sorted(made["paths"].items())
        for verb, operation in sorted(operations.items())
    )
    used = sorted(name for name in schemas if re.search(rf"(-> |\[\[){name}\b", methods))
    return _formatted(_HEAD % ", ".join(used) + "\n" + methods)


def main() -> None:
    """Write both files."""
    text = document()
    DOCUMENT.write_text(text, encoding="utf-8")
    METHODS.write_text(client(text), encoding="utf-8")


def _method(path: str, verb: str, op: dict[str, Any], schemas: dict[str, Any]) -> str:
    inside, places = _arguments(op, schemas)
    statuses = {code: answer for code, answer in op["responses"].items() if code < "300"}
    long = "202" in statuses and len(statuses) > 1
    if long:
        inside.append("on_progress: Callable[[Operation], None] | None = None")
    kind = _returned(statuses["200"] if "200" in statuses else next(iter(statuses.values())))
    required = [one for one in inside if " = " not in one]
    optional = [one for one in inside if " = " in one]
    star = ["*", *optional] if optional else []
    how, progress = ("_long", ", on_progress=on_progress") if long else ("_call", "")
    return textwrap.indent(
        f"def {op['operationId']}({', '.join(['self', *required, *star])}) -> {kind}:\n"
        f'    """{_prose(op["description"], 8)}"""\n'
        f"    answer: {kind} = self.{how}({verb.upper()!r}, {_url(path)}{places}{progress})\n"
        f"    return answer\n",
        "    ",
    )


def _arguments(op: dict[str, Any], schemas: dict[str, Any]) -> tuple[list[str], str]:
    """The method's arguments, and the code that passes them on."""
    arguments, places = [], {"query": [], "header": []}  # type: ignore[var-annotated]
    for parameter in op.get("parameters", []):
        name = parameter["name"].replace("-", "_")
        kind = _python(parameter["schema"])
        if parameter["in"] == "path":
            arguments.append(f"{name}: {kind}")
            continue
        default = repr(parameter["schema"].get("default")) if not parameter["required"] else ""
        arguments.append(f"{name}: {kind}" + (f" = {default}" if default else ""))
        places[parameter["in"]].append(f"{parameter['name']!r}: {name}")
    words = [f", {place}={{{', '.join(given)}}}" for place, given in places.items() if given]
    content = op.get("requestBody", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    if "$ref" in schema:
        fields = schemas[schema["$ref"].rpartition("/")[2]]
        for name, field in fields["properties"].items():
            needed = name in fields.get("required", ())
            kind = _python(field)
            arguments.append(f"{name}: {kind}" if needed else f"{name}: {kind} | None = None")
        given = ", ".join(f"{name!r}: {name}" for name in fields["properties"])
        words.append(f", document={{{given}}}")
    elif content:
        arguments += ["body: bytes", "content_type: str"]
        words.append(", body=body, content_type=content_type")
    return arguments, "".join(words)


def _returned(answer: dict[str, Any]) -> str:
    return _python(answer["content"]["application/json"]["schema"])


def _python(schema: dict[str, Any]) -> str:
    """The Python type of a JSON schema."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(_python(one) for one in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return f"Literal[{', '.join(map(repr, schema.get('enum', [schema.get('const')])))}]"
    kind = schema.get("type")
    if kind == "array":
        return f"list[{_python(schema.get('items', {}))}]"
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"dict[str, {_python(inner) if isinstance(inner, dict) else 'Any'}]"
    return _PLAIN.get(str(kind), "Any")


def _url(path: str) -> str:
    names = re.findall(r"{(\w+)}", path)
    if not names:
        return repr(path)
    return f"path_of({path!r}, {', '.join(f'{name}={name}' for name in names)})"


def _prose(text: str, indent: int) -> str:
    lines = []
    for paragraph in text.strip().split("\n\n"):
        words = " ".join(paragraph.split())
        lines.append("\n".join(textwrap.wrap(words, 94 - indent, break_long_words=False)))
    inside = textwrap.indent("\n\n".join(lines), " " * indent).lstrip()
    return inside + ("\n" + " " * indent if "\n" in inside else "")


def _formatted(text: str) -> str:
    ruff = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(METHODS), "-"]
    done = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout


if __name__ == "__main__":
    main()
