"""The house stays tidy: what a command can check of structure, names and docs."""

import ast
import collections
import io
import re
import subprocess
import tokenize
from pathlib import Path

import grimp
import pytest

from edged.client import frames
from edged.config.sections import SETTINGS

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("edged", "api", "governors", "kernels", "deploy")
FILE_LINES_MAX, FUNCTION_LINES_MAX, README_LINES_MAX = 500, 70, 110

SAME_CLASS_NAMES = {"_Commands", "_Document", "_Lane"}
"""Private classes of one role in several modules."""
REST_ANSWERS = "edged/rest/answers"
"""Its classes are the schemas of the OpenAPI document, named after what they describe."""
COINCIDENCES = {
    "BLOCKS", "CHUNK", "FIELDS", "FORMAT", "INTERVAL_US", "IOV_MAX",
    "KEY_MAX", "LINE_BYTES_MAX", "NONE",
    "REQUESTS_MAX", "ROWS_MIN", "ROW_BYTES", "SECONDS", "SEGMENT_BYTES", "SLOTS", "VERSION",
}  # fmt: skip
"""Constants of one name and value that mean different things: each file format counts its own
versions, each meter has its own interval.  Executors carry no module that has `IOV_MAX`."""
REGISTRIES = {
    "api/openapi.py": "_BY_STATUS",
    "edged/cli/_doctor/base.py": "CHECKS",
    "edged/expressions/cache.py": "_LOADED",
    "edged/expressions/stages.py": "DERIVED",
    "edged/joins/base.py": "JOINS",
    "governors/actuators/base.py": "FINDERS SCHEMES",
    "governors/actuators/journal.py": "_held",
    "governors/simulated/kernel.py": "_RULES",
    "kernels/ahead/library.py": "_METHODS",
    "kernels/registry.py": "KERNELS LOOPS _CLOSED",
}
"""Module state that changes: registries filled at import, caches, and locks of this process."""


def tracked(*patterns):
    listed = subprocess.check_output(["git", "ls-files", *patterns], cwd=ROOT, text=True)
    return [name for name in listed.split() if (ROOT / name).exists()]


PYTHON = tracked("*.py")
TREES = {name: ast.parse((ROOT / name).read_text()) for name in PYTHON}
OURS = [name for name in PYTHON if name.split("/")[0] in PRODUCT]


def functions(tree):
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.fixture(scope="module")
def graph():
    return grimp.build_graph(*PRODUCT[:4], exclude_type_checking_imports=False, cache_dir=None)


def test_no_modules_import_each_other_in_a_circle(graph):
    reach = {m: graph.find_modules_directly_imported_by(m) for m in graph.modules}
    assert circles(reach) == []


def circles(reach):
    """Strongly connected components of more than one node, by removing leaves and roots."""
    left = {m: set(to) for m, to in reach.items()}
    while True:
        targets = set().union(*left.values()) if left else set()
        gone = {m for m, to in left.items() if not to & left.keys() or m not in targets}
        if not gone:
            return sorted(left)
        left = {m: to - gone for m, to in left.items() if m not in gone}


def test_the_check_for_circles_finds_one():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c"]


def test_the_layers_name_every_room_of_edged():
    contract = (ROOT / "pyproject.toml").read_text().partition("\nlayers = [")[2]
    layers = re.findall(r'"(.*?)"', contract.partition("\n]")[0])
    named = {room.strip() for layer in layers for room in layer.split("|")}
    rooms = {Path(name).parts[1] for name in tracked("edged/*/*.py")}
    assert named == rooms | {"errors"}
    design = (ROOT / "docs" / "design.md").read_text()
    assert {room for room in rooms if f"`{room}/`" not in design} == set()


def test_only_the_errors_and_the_entry_point_lie_loose_in_edged():
    assert tracked("edged/*.py", ":!edged/*/*") == [
        "edged/__init__.py", "edged/__main__.py", "edged/errors.py",
    ]  # fmt: skip


def test_files_and_functions_are_short():
    lines = {name: (ROOT / name).read_text().count("\n") for name in PYTHON}
    assert {name: n for name, n in lines.items() if n > FILE_LINES_MAX} == {}
    long = {
        f"{name}:{f.name}": f.end_lineno - f.lineno + 1
        for name, tree in TREES.items()
        for f in functions(tree)
    }
    assert {name: n for name, n in long.items() if n > FUNCTION_LINES_MAX} == {}


def test_everything_public_has_a_docstring():
    lacking = []
    for name in OURS:
        if not ast.get_docstring(TREES[name]):
            lacking.append(name)
        bodies = [TREES[name].body]
        bodies += [
            n.body for n in TREES[name].body if isinstance(n, ast.ClassDef) and n.name[0] != "_"
        ]
        for node in [node for body in bodies for node in body]:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            overload = any(getattr(d, "id", "") == "overload" for d in node.decorator_list)
            if node.name[0] != "_" and not overload and not ast.get_docstring(node):
                lacking.append(f"{name}: {node.name}")
    assert lacking == []


def test_a_class_name_has_one_meaning():
    owners = collections.defaultdict(list)
    for name in OURS:
        if not name.startswith(REST_ANSWERS):
            for node in TREES[name].body:
                if isinstance(node, ast.ClassDef) and node.name not in SAME_CLASS_NAMES:
                    owners[node.name].append(name)
    assert {name: files for name, files in owners.items() if len(files) > 1} == {}


def test_a_constant_is_defined_once():
    owners = collections.defaultdict(list)
    for name in OURS:
        for constant, value in constants(TREES[name]):
            if constant not in COINCIDENCES:
                owners[constant, value].append(name)
    assert {key: files for key, files in owners.items() if len(files) > 1} == {}


def constants(tree):
    """(name, source of the value) of each literal constant of a module."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id.lstrip("_")
            literal = not any(isinstance(n, ast.Name | ast.Call) for n in ast.walk(node.value))
            if name.isupper() and literal:
                yield name, ast.unparse(node.value)


def test_modules_keep_no_state_but_registries():
    found = {}
    for name in OURS:
        for node in TREES[name].body:
            target = getattr(node, "target", None) or (getattr(node, "targets", None) or [None])[0]
            if isinstance(target, ast.Name) and is_empty(getattr(node, "value", None)):
                found.setdefault(name, set()).add(target.id)
        stated = [n for n in ast.walk(TREES[name]) if isinstance(n, ast.Global)]
        assert not stated, f"{name} rebinds a global"
    assert found == {name: set(words.split()) for name, words in REGISTRIES.items()}


def is_empty(value):
    """Whether a module-level value is a container that is filled later."""
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) in ("dict", "list", "set", "deque") and not value.args
    return ast.unparse(value) in ("{}", "[]") if isinstance(value, ast.Dict | ast.List) else False


DOCS = [name for name in tracked("*.md") if name not in ("CHANGELOG.md", "docs/worklist.md")]
PATH = re.compile(r"`((?:edged|api|governors|kernels|deploy|tests|docs|examples)/[\w./-]+)`")
MODULE = re.compile(r"`((?:edged|api|governors|kernels)(?:\.[a-z_]\w*)+)`")


def text_of_docs_and_docstrings():
    yield from ((name, (ROOT / name).read_text()) for name in DOCS)
    for name in OURS:
        for node in ast.walk(TREES[name]):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "`" in node.value:
                yield name, node.value


def test_every_path_in_docs_and_docstrings_exists():
    missing = {
        f"{name}: {path}"
        for name, text in text_of_docs_and_docstrings()
        for path in PATH.findall(text)
        if not (ROOT / path).exists() and "NAME" not in path
    }
    assert missing == set()


ENTRY_POINTS = {f"edged.{group}" for group in ("meters", "policies", "functions", "code")}
OTHERS = {"edged.telemetry", "edged.service", "edged.socket", "edged.target", "edged.toml"}
"""A stream, systemd units, a file."""
WIRE = {v.decode() for v in vars(frames).values() if isinstance(v, bytes) and b"edged." in v}
"""Metadata keys of producers."""


def test_every_module_named_in_docs_and_docstrings_exists():
    missing = set()
    for name, text in text_of_docs_and_docstrings():
        for dotted in MODULE.findall(text):
            known = ENTRY_POINTS | OTHERS | WIRE | set(SETTINGS)
            if dotted not in known and not resolves(dotted):
                missing.add(f"{name}: {dotted}")
    assert missing == set()


def resolves(dotted):
    """Whether a dotted name is a module, or a name that a module binds."""
    words = dotted.split(".")
    for stop in range(len(words), 0, -1):
        base = "/".join(words[:stop])
        for file in (f"{base}.py", f"{base}/__init__.py"):
            if (ROOT / file).exists():
                rest = words[stop:]
                return not rest or re.search(
                    rf"\b{re.escape(rest[0])}\b", (ROOT / file).read_text()
                )
        if stop == len(words) and (ROOT / base).is_dir():
            return True
        if (ROOT / f"{base}.toml").exists() or (ROOT / f"{base}.md").exists():
            return True
    return False


def test_the_readme_fits_two_screens():
    assert (ROOT / "README.md").read_text().count("\n") <= README_LINES_MAX


def test_links_between_docs_lead_somewhere():
    missing = set()
    for name in DOCS:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", (ROOT / name).read_text()):
            if "://" not in target and not ((ROOT / name).parent / target).exists():
                missing.add(f"{name}: {target}")
    assert missing == set()


PERSONS = re.compile(
    r"(?<![-`])\b(who|whom|whoever|he|him|nobody|somebody|anybody|everybody|someone|anyone|everyone"
    r"|anew|what is told|what it is told|that which|holds good|let go|lets go)\b(?![`(=])",
    re.IGNORECASE,
)
"""Words for persons, and idioms with a term of the field.  A user or an option may be so named, in
backticks or after a hyphen."""


def prose_with(words):
    """(name, text) of docs, and of docstrings, comments, and messages of the product, of the files
    in which there is such a word at all: to read the tokens of all files takes 15 CPU-seconds."""
    yield from ((name, (ROOT / name).read_text()) for name in DOCS)
    for name in PYTHON:
        if not words.search((ROOT / name).read_text()):
            continue
        for node in ast.walk(TREES[name]):
            texts = name in OURS or isinstance(node, ast.Expr)
            text = node.value if isinstance(node, ast.Expr) else node
            if texts and isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield name, text.value
        for token in tokenize.generate_tokens(io.StringIO((ROOT / name).read_text()).readline):
            if token.type == tokenize.COMMENT:
                yield name, token.string


def test_docs_docstrings_and_comments_speak_of_no_persons():
    found = {
        f"{name}: …{text[max(0, match.start() - 30) : match.end() + 20]!r}"
        for name, text in prose_with(PERSONS)
        for match in PERSONS.finditer(text)
    }
    assert found == set()


def test_the_check_for_persons_finds_them_and_leaves_names_alone():
    assert [PERSONS.search(text) is not None for text in ("Who leads", "as `nobody`", "--nobody")] \
        == [True, False, False]  # fmt: skip
