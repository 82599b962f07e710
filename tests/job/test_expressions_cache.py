"""Generated kernels: cached, compiled in a child process, free of text from documents."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edged.data.schema import TYPES, Field, Schema
from edged.data.workers import Workers
from edged.errors import KernelError
from edged.expressions import cache
from edged.expressions.program import Predicate, Projection
from tests.job import expressions_duckdb as duck

BUILD = """
import sys
from edged.expressions.program import Predicate
from edged.data.schema import Schema
schema = Schema.from_json('[{"name": "k", "type": "int32"}]')
run = Predicate.of("f.where", "k > 1 AND k % 7 = 3", schema).build()
print(sum(run._kernel.stats.cache_hits.values()), sum(run._kernel.stats.cache_misses.values()))
"""


def build_in_new_process(directory: Path) -> tuple[int, int]:
    """(hits, misses) of numba's cache when a new process builds a predicate."""
    environment = {**os.environ, "EDGED_CACHE": str(directory)}
    done = subprocess.run(
        [sys.executable, "-c", BUILD], env=environment, capture_output=True, text=True, check=True
    )
    hits, misses = done.stdout.split()
    return int(hits), int(misses)


def test_the_parent_only_ever_loads_and_the_second_build_compiles_nothing(tmp_path):
    assert build_in_new_process(tmp_path) == (1, 0), "compiled in the child, loaded in the parent"
    written = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    assert build_in_new_process(tmp_path) == (1, 0)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()} == written


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache directory of the test's own."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("EDGED_CACHE", str(directory))
    cache.cache_directory.cache_clear()
    yield directory
    cache.cache_directory.cache_clear()


def test_the_cache_directory_is_this_users_alone(own_cache):
    assert cache.cache_directory() == own_cache
    assert own_cache.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_others_may_write_to_is_not_used(own_cache, monkeypatch):
    own_cache.mkdir()
    own_cache.chmod(0o777)
    monkeypatch.setenv("HOME", "/dev/null")
    chosen = cache.cache_directory()
    assert chosen != own_cache
    assert chosen.stat().st_mode & 0o777 == 0o700


def test_a_source_that_somebody_changed_is_written_again(own_cache):
    source = Predicate.of("c", "k > 41", duck.SCHEMA).source.text
    cache.kernel(source, child=False)
    (path,) = own_cache.glob("expr_*.py")
    text = path.read_text()
    path.write_text("raise SystemExit")
    cache._LOADED.clear()
    cache.kernel(source, child=False)
    assert path.read_text() == text


def test_a_kernel_that_does_not_compile_says_so(own_cache):
    with pytest.raises(KernelError, match="does not compile"):
        cache.kernel("def kernel(:\n")


def test_one_kernel_serves_all_literals_of_a_shape():
    sources = {Predicate.of("c", f"s = '{text}'", duck.SCHEMA).source.text for text in "abc"}
    assert len(sources) == 1


HOSTILE = [
    "'); import os; os.system('true')",
    '"""\nraise SystemExit\n"""',
    "\\x27 + __import__('os').getcwd() #",
    "{0} {name} %s $ \n    raise SystemExit",
    "it's",
    "é\u2028日本",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_a_literal_or_a_name_is_data_never_code(text):
    schema = Schema.of([Field("s", TYPES["string"]), Field(text, TYPES["int32"], True)])
    quoted, named = text.replace("'", "''"), text.replace('"', '""')
    where = f"""s = '{quoted}' OR contains(s, '{quoted}') OR 1 // "{named}" = 5"""
    plain = """s = 'x' OR contains(s, 'x') OR 1 // k = 5"""
    other = Schema.of([Field("s", TYPES["string"]), Field("k", TYPES["int32"], True)])
    ours = Predicate.of("c", where, schema)
    assert ours.source.text == Predicate.of("c", plain, other).source.text
    assert ours.source.literals[0] == text.encode()
    mapped = Projection.of("c", {text: f'"{named}" + 1', "s": f"'{quoted}'"}, schema)
    assert mapped.output.names == (text, "s")
    assert text not in mapped.source.text


def test_a_hostile_literal_is_matched_byte_for_byte():
    batch = duck.rows(3, 200)
    run = Predicate.of("c", "w = 'a%b' OR w = '''; DROP' OR w LIKE '%''%'", duck.SCHEMA)
    rows = run.build(child=False).select(batch, Workers(1))
    texts = batch.to_arrow().column("w").to_pylist()
    assert rows.tolist() == [i for i, text in enumerate(texts) if text == "a%b"]


def test_generated_code_holds_numbers_and_known_names_only():
    columns = {
        "a": "CASE WHEN b THEN s ELSE 'x' END",
        "b": "i8 + 1.5",
        "c": "ts + INTERVAL '1 month'",
    }
    tree = ast.parse(Projection.of("c", columns, duck.SCHEMA).source.text)
    constants = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
    assert [c for c in constants if not isinstance(c, (int, float))] == ["numpy"]


def test_building_from_the_cache_takes_a_moment(own_cache):
    plan = Predicate.of("c", "k > 43", duck.SCHEMA)
    plan.build()
    cache._LOADED.clear()
    start = time.perf_counter()
    plan.build()
    assert time.perf_counter() - start < 2
