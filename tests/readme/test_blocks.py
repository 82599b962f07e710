"""The blocks of the first day's documents: each runs or is marked, and those without root run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from edged.documents.reader import loads
from edged.job.plan import load_job
from tests.api.support import both
from tests.readme.blocks import DOCUMENTS, ROOT, UnfitBlock, blocks, job_texts

FOUND = {document: blocks(document) for document in DOCUMENTS}
ALL = [block for found in FOUND.values() for block in found]
NO_ROOT = [b for b in ALL if b.document in ("docs/watch.md", "docs/jobs.md") and not b.excerpt]


def named(kind):
    return [pytest.param(b, id=b.place) for b in NO_ROOT if b.kind == kind]


def test_each_document_has_blocks_that_run():
    assert [d for d in DOCUMENTS if not any(not b.excerpt for b in FOUND[d])] == []


def test_blocks_are_those_that_markdown_shows():
    fenced = sum(len(re.findall(r"^```\w", (ROOT / d).read_text(), re.M)) for d in DOCUMENTS)
    assert len(ALL) >= fenced > 8


def test_an_excerpt_of_a_file_stands_in_that_file():
    excerpts = [b for b in ALL if b.excerpt.startswith("of ")]
    assert excerpts
    for block in excerpts:
        assert _within(loads(block.text), loads(_file(block))), block.place


def _file(block):
    return (ROOT / block.excerpt.removeprefix("of ")).read_text()


def _within(part, whole):
    if isinstance(part, dict):
        return all(key in whole and _within(part[key], whole[key]) for key in part)
    return part == whole


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```\nmake\n```", "x.md:1: a nameless block"),
        ("text\n\n```json\n{}\n```", "x.md:3: a json block"),
        ("<!-- excerpt: -->\n```json\n{}\n```", "x.md:1: a mark is"),
        ("<!-- excerpt -->\n```sh\nls\n```", "x.md:1: a mark is"),
        ("<!-- excerpt: old -->\nText.", "x.md:2: a mark without a block"),
        ("<!-- except make: slow -->\n```sh\nls\n```", "x.md:2: `make` is no command"),
    ],
)
def test_a_block_that_neither_runs_nor_is_marked_is_found(text, problem):
    with pytest.raises(UnfitBlock, match=f"^{problem}"):
        blocks("x.md", text)


def test_marks_take_out_a_block_or_one_command():
    first, second, third = blocks(
        "x.md",
        "<!-- excerpt: a part -->\n```json\n{}\n```\n<!-- except make b: slow -->\n```sh\n"
        "make a  # first\nmake b\n```\n\n    make c \\\n      d\n    e\n\n- list\n    goes on\n",
    )
    assert (first.excerpt, second.commands) == ("a part", ["make a"])
    assert [" ".join(line.split()) for line in third.commands] == ["make c d", "e"]


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """Runs a command in a directory with the examples, beside a daemon and its API."""
    place = tmp_path_factory.mktemp("walk")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)  # a job of the page writes into out/
        config = place / "edged.toml"  # as `edged up` has it
        config.write_text(f"[run]\nremote_files = [{json.dumps(str(place))}]\n")
        with both(place, words=("--config", str(config))) as (_, api):
            yield _shell(api)


def _shell(api):
    (api.path / "examples").symlink_to(ROOT / "examples")
    environment = {
        **os.environ, "EDGED_API": str(api.socket),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip

    def run(command):
        return subprocess.run(
            ["bash", "-c", command], env=environment, cwd=api.path,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    return run


@pytest.mark.parametrize("block", named("sh"))
def test_commands_run_as_printed(shell, block):
    for command in block.commands:
        done = shell(command)
        assert done.returncode == 0, f"{block.place}: {command}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("block", named("python"))
def test_programs_run_as_printed(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block.text, block.place, "exec"), {})
    assert load_job(tmp_path / "power_curve.json").name == "power_curve"


def test_jobs_are_valid(tmp_path):
    texts = [text for found in FOUND.values() for _, text in job_texts(found)]
    assert len(texts) > 1
    for number, text in enumerate(texts):
        file = tmp_path / f"{number}.toml"
        file.write_text(text)
        load_job(file)
