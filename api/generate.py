"""`python -m api.generate`: docs/openapi.json, and from it the typed client's edged/rest/_made.py.

Both are committed; a test says when they are not current.  The client's part is TypedDicts of the
answers and a method for each operation; ready-made generators make a package of hundreds of files
of such a document, with dependencies that a device has no use for.

How an operation becomes a method: its id is the name; parameters become arguments, those of a JSON
body too; any other body is `body` and `content_type`.  One that may answer 202 with an operation
waits for it, and tells `on_progress` how far it is.
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
MADE = ROOT / "edged" / "rest" / "_made.py"
_HEAD = '''\
"""Made by `python -m api.generate` from docs/openapi.json: do not edit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypedDict

from edged.rest.transport import Transport, path_of

'''
_PLAIN = {"integer": "int", "number": "float", "string": "str", "boolean": "bool", "null": "None"}
_NO_ANSWERS = ("KernelChange", "GovernorChange", "LogChange")
_RAW = "text/event-stream"


def document() -> str:
    """The OpenAPI document as it is committed."""
    return json.dumps(routes().openapi(), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def client(text: str) -> str:
    """The client's module for an OpenAPI document."""
    made = json.loads(text)
    schemas = made["components"]["schemas"]
    parts = [_HEAD]
    parts += [_type(n, s) for n, s in sorted(schemas.items()) if n not in _NO_ANSWERS]
    parts.append('class Methods(Transport):\n    """One method for each operation of the API."""\n')
    for path, methods in sorted(made["paths"].items()):
        parts += [_method(path, verb, op, schemas) for verb, op in sorted(methods.items())]
    return _formatted("\n\n".join(parts))


def main() -> None:
    """Write both files."""
    text = document()
    DOCUMENT.write_text(text, encoding="utf-8")
    MADE.write_text(client(text), encoding="utf-8")


def _type(name: str, schema: dict[str, Any]) -> str:
    lines = [f"class {name}(TypedDict):", f'    """{_prose(schema["description"], 4)}"""', ""]
    for field, told in schema["properties"].items():
        lines.append(f"    {field}: {_python(told)}")
        if "description" in told:
            lines.append(f'    """{_prose(told["description"], 4)}"""')
    return "\n".join(lines)


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
    how, told = ("_long", ", on_progress=on_progress") if long else ("_call", "")
    return textwrap.indent(
        f"def {op['operationId']}({', '.join(['self', *required, *star])}) -> {kind}:\n"
        f'    """{_prose(op["description"], 8)}"""\n'
        f"    answer: {kind} = self.{how}({verb.upper()!r}, {_url(path)}{places}{told})\n"
        f"    return answer\n",
        "    ",
    )


def _arguments(op: dict[str, Any], schemas: dict[str, Any]) -> tuple[list[str], str]:
    """Arguments of the method, and how they are handed on."""
    arguments, places = [], {"query": [], "header": []}  # type: ignore[var-annotated]
    for told in op.get("parameters", []):
        name = told["name"].replace("-", "_")
        kind = _python(told["schema"])
        if told["in"] == "path":
            arguments.append(f"{name}: {kind}")
            continue
        default = repr(told["schema"].get("default")) if not told["required"] else ""
        arguments.append(f"{name}: {kind}" + (f" = {default}" if default else ""))
        places[told["in"]].append(f"{told['name']!r}: {name}")
    words = [f", {place}={{{', '.join(given)}}}" for place, given in places.items() if given]
    content = op.get("requestBody", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    if "$ref" in schema:
        fields = schemas[schema["$ref"].rpartition("/")[2]]
        for name, told in fields["properties"].items():
            needed = name in fields.get("required", ())
            kind = _python(told)
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
    ruff = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(MADE), "-"]
    done = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout


if __name__ == "__main__":
    main()
