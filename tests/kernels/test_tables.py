"""Images, runs and probes against `tests.naive.tables`."""

import ctypes

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from edged.data.columns import address
from edged.data.scratch import Scratch
from edged.tables._images import Images
from edged.tables._merge import RunLayout, sorted_run
from kernels.cpu.tables import images, probe, sort
from tests import whole
from tests.naive import tables as naive
from tests.tables import support


def rows_and_hashes(most=40):
    """A shape's name, rows with weights, and few hashes that collide."""
    return st.sampled_from(sorted(support.SHAPES)).flatmap(
        lambda name: st.tuples(
            st.just(name),
            st.lists(
                st.tuples(
                    support.rows_of(support.SHAPES[name][0]),
                    st.integers(-2, 2),
                    st.sampled_from([0, 1, 2**63, 2**64 - 1]),
                ),
                min_size=1, max_size=most,
            ),
        )
    )  # fmt: skip


def encoded(name, rows):
    """The kernels' records of a shape's rows, with what made them and their plain images."""
    schema, key = support.SHAPES[name]
    order = [*key, *(n for n in schema.names if n not in key)]
    fields = [schema.field(n) for n in order]
    at = [schema.index(n) for n in order]
    hashes = np.array([h for _, _, h in rows], np.uint64)
    weights = np.array([w for _, w, _ in rows], np.int32)
    coder = Images(schema, key)
    records = coder.encode(support.batch(schema, [row for row, _, _ in rows]), hashes, weights)
    plain = [(h, w, naive.row_image(fields, [row[i] for i in at])) for row, w, h in rows]
    return coder, fields, records, hashes, plain


def plain_order(row):
    return tuple(map(naive.order_of, row))


@settings(max_examples=whole.examples(300), deadline=None)
@given(rows_and_hashes())
def test_images_are_those_of_the_layout_and_become_rows_again(case):
    name, rows = case
    coder, fields, records, _, plain = encoded(name, rows)
    content = records.memory[: records.offsets[-1]].tobytes()
    assert content == b"".join(naive.records(plain))
    assert records.offsets.tolist() == naive.offsets([len(i) for _, _, i in plain], naive.HEADER)
    found = support.python_rows(coder.decode(records.addresses()))
    assert [plain_order(row) for row in found] == [plain_order(row) for row, _, _ in rows]
    for _, _, content in plain:
        for f in fields:
            value, content = naive.column(f, content)
            assert naive.order_of(value) in {
                naive.order_of(row[coder.schema.index(f.name)]) for row, _, _ in rows
            }
        assert content == b""


@settings(max_examples=whole.examples(300), deadline=None)
@given(rows_and_hashes(200))
def test_a_run_has_each_row_once_in_order_with_its_weight(case):
    name, rows = case
    _, _, records, hashes, plain = encoded(name, rows)
    run = sorted_run(records, hashes, Scratch())
    wanted = naive.consolidated(plain)
    assert wanted == naive.sorted_records(wanted)
    parts = naive.records(wanted)
    assert run.records.tobytes() == b"".join(parts)
    places = np.cumsum([0, *map(len, parts)]) // 8
    placed = [(h, int(at)) for (h, _, _), at in zip(wanted, places, strict=False)]
    directory = naive.directory(placed, run.facts.bits, int(places[-1]))
    assert run.directory.tolist() == directory
    again = np.zeros_like(run.directory)
    again[-1] = run.directory[-1]
    assert sort.make_directory(address(run.records), again) == run.facts.rows == len(wanted)
    assert again.tolist() == directory
    assert run.facts.heaviest == naive.heaviest({}, [(c, w) for _, w, c in wanted])
    place = np.zeros(1, np.int64)
    for high in (0, 1, 2**63, 2**64 - 1):
        count = sort.until(address(run.records), 0, run.facts.record_bytes, np.uint64(high), place)
        assert count == naive.until([h for h, _, _ in wanted], high)
        assert place[0] == 8 * places[count]
    found_h, found = np.empty(len(wanted), np.uint64), np.empty(len(wanted), np.int64)
    sort.collect(address(run.records), 0, found_h, found)
    assert found_h.tolist() == [h for h, _, _ in wanted]
    assert (found - address(run.records)).tolist() == (8 * places[:-1]).tolist()


@settings(max_examples=whole.examples(300), deadline=None)
@given(rows_and_hashes(120), st.data())
def test_records_laid_out_beside_a_run_make_the_run_of_both(case, data):
    name, rows = case
    cut = data.draw(st.integers(0, len(rows)))
    _, _, records, hashes, first = encoded(name, rows[:cut])
    run = sorted_run(records, hashes, Scratch())
    _, _, records, hashes, second = encoded(name, rows[cut:])
    layout = RunLayout(len(rows), Scratch())
    target = np.empty(run.facts.record_bytes + int(records.offsets[-1]) + 8, np.uint8)
    begin = address(run.records)
    places = begin, begin + run.facts.record_bytes
    size = layout.add_beside(hashes, records.addresses(), 0, 2**64 - 1, places, target)
    wanted = naive.consolidated(first + second)
    parts = naive.records(wanted)
    assert target[:size].tobytes() == b"".join(parts)
    facts = layout.facts()
    assert facts.rows == len(wanted)
    assert facts.heaviest == naive.heaviest({}, [(c, w) for _, w, c in wanted])
    at = np.cumsum([0, *map(len, parts)]) // 8
    placed = [(h, int(place)) for (h, _, _), place in zip(wanted, at, strict=False)]
    assert layout.directory.tolist() == naive.directory(placed, facts.bits, int(at[-1]))


@pytest.mark.parametrize("count", [1, 2, 25, 1_000, 30_000])
@pytest.mark.parametrize("low, high", [(0, 2**64 - 1), (2**40, 2**40 + 999), (5, 5)])
def test_records_are_sorted_by_hash_and_image_whatever_the_range(count, low, high):
    rng = np.random.default_rng(count)
    hashes = rng.integers(low, high, count, np.uint64, endpoint=True)
    memory = np.zeros((count, 3), np.uint64)
    memory[:, 0], memory[:, 1], memory[:, 2] = hashes, 3, rng.integers(0, 3, count)
    records = address(memory) + 24 * np.arange(count)
    wanted = memory[np.lexsort((memory[:, 2].byteswap(), memory[:, 0]))]
    other = np.empty(count, np.uint64), np.empty(count, np.int64)
    counts = np.empty((1 << sort.PASS_BITS) + 1, np.int64)
    sort.sort(hashes, records, *other, counts, np.uint64(low), np.uint64(high))
    found = np.array([
        np.frombuffer(ctypes.string_at(int(at), 24), np.uint64) for at in records
    ])  # fmt: skip
    assert (found == wanted).all()


def test_the_heaviest_row_counts_its_records_of_all_runs():
    row, other = (1, 2.0), (1, 3.0)
    made = [encoded("one integer", [(row, w, 7), (other, 1, 7)]) for w in (5, -9)]
    runs = [sorted_run(records, hashes, Scratch()) for _, _, records, hashes, _ in made]
    places = np.array([run.place() for run in runs])
    largest = np.zeros(2, np.int64)
    first = address(runs[0].records)
    probe.heaviest(places, first, first + runs[0].facts.record_bytes, largest)
    assert largest.tolist() == [3, 19]


def test_headers_are_sixteen_bytes():
    assert images.HEADER == naive.HEADER
