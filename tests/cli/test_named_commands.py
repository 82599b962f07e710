"""Every command named in the repository's texts exists, with its options.

Texts are docs, alerts, units, scripts, and messages of the programs: `edged …` in backticks, shell
lines in documents, and the commands of units.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from edged.cli import cli

ROOT = Path(__file__).parents[2]
PLACES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs", "deploy", "examples",
          "api", "edged", "governors", "Makefile"]  # fmt: skip
GONE = ["edged kernel"]  # removed commands, which the changelog names
QUOTED = re.compile(r"`(edged [^`]*)`")
LINE = re.compile(r"^(?:    |\$ |sudo |ExecS?\w+=/opt/edged/bin/)?(edged [a-z][^#\n]*)", re.M)
WORD, OPTION = re.compile(r"[a-z][a-z0-9-]*"), re.compile(r"--[a-z][a-z-]*")


def texts():
    """(path, command) of all of them."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *PLACES]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in done.stdout.split():
        path = ROOT / name
        if path.suffix not in (".py", ".md", ".yml", ".toml", ".service", ".sh", ".html", ".js"):
            continue
        text = path.read_text()
        found = [" ".join(one.split()) for one in QUOTED.findall(text)]
        if path.suffix == ".md":
            found += LINE.findall("\n".join(_shell(text)))
        elif path.suffix == ".service":
            found += LINE.findall(text)
        yield from ((name, command) for command in found if command not in GONE)


def _shell(text):
    """The lines of shell in a document, continued ones joined."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.S)
    blocks += re.findall(r"^    edged .*\n(?:^ {6,}\S.*\n)*", text, re.M)
    return [line.strip() for b in blocks for line in re.sub(r"\\\n\s*", " ", b).splitlines()]


def resolve(command):
    """The click commands that a text names, with what follows.  Raises LookupError."""
    first, *others = command.split(" | ")
    words = [word.strip("[]") for word in first.split()[1:]]
    here, path = cli, []
    while isinstance(here, click.Group) and words and WORD.fullmatch(words[0]):
        within, here = here, here.get_command(click.Context(here), words[0])
        if here is None:
            raise LookupError(f"there is no {words[0]}")
        path.append(words.pop(0))
        for other in [] if words or isinstance(here, click.Group) else others:
            if within.get_command(click.Context(within), name := other.split()[0]) is None:
                raise LookupError(f"there is no {name}")
    takes = [p for p in here.params if isinstance(p, click.Argument)]
    if (
        takes
        and isinstance(takes[0].type, click.Path)
        and re.match(r"[a-z]+( |$)", " ".join(words))
    ):
        raise LookupError(f"{' '.join(path)} takes a file, not {words[0]}")
    options = {name for p in here.params for name in (*p.opts, *p.secondary_opts)} | {"--help"}
    unknown = set(OPTION.findall(" ".join(words))) - options
    if unknown:
        raise LookupError(f"{' '.join(path)} has no {', '.join(sorted(unknown))}")
    return tuple(path)


FOUND = sorted(set(texts()))


def test_there_are_commands_in_texts_of_all_kinds():
    kinds = {Path(name).suffix for name, _ in FOUND}
    assert len(FOUND) > 150 and {".md", ".py", ".yml", ".service"} <= kinds


def test_every_command_that_is_named_is_there():
    wrong = []
    for name, command in FOUND:
        try:
            resolve(command)
        except LookupError as problem:
            wrong.append(f"{name}: `{command}`: {problem}")
    assert not wrong, "\n".join(wrong)


def test_each_says_how_it_is_used():
    runner = CliRunner()
    for path in sorted({resolve(command) for _, command in FOUND}):
        done = runner.invoke(cli, [*path, "--help"])
        assert done.exit_code == 0 and done.output.startswith("Usage: "), path


def test_lists_of_commands_cut_nobody_off():
    groups = [()] + [
        (name,)
        for name in cli.list_commands(click.Context(cli))
        if isinstance(cli.get_command(click.Context(cli), name), click.Group)
    ]
    assert {("bench",), ("central",), ("jobs",)} <= set(groups)
    for path in groups:
        told = CliRunner().invoke(cli, [*path, "--help"]).output
        assert "...\n" not in told.partition("Commands:")[2], told


@pytest.mark.parametrize(
    "wrong",
    [
        "edged page verify FILE --now",
        "edged jobs shown x",
        "edged jobs drain x --hurry",
        "edged token create | drop",
    ],
)
def test_a_wrong_one_is_found(wrong):
    with pytest.raises(LookupError):
        resolve(wrong)
