"""The members on a GPU, run in numba's CUDA simulator, and what of them needs none.

The simulator is chosen when numba is imported, so the suite runs in a process of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.errors import JobError
from edged.joins._cuda_batches import Batching
from kernels.cpu import bitmap as kernel
from kernels.cuda import gpu
from tests.joins.support import members, named
from tests.naive import bitmap as naive

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not gpu.INSTALLED, reason="numba-cuda is not installed: make cuda")
def test_the_suite_holds_in_the_simulator(tmp_path):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    environment = {
        **os.environ,
        "NUMBA_ENABLE_CUDASIM": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path),
    }
    run = subprocess.run(
        [*command, "tests/joins/cuda_suite.py"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    assert re.search(r"^\d+ passed", run.stdout, re.MULTILINE)
    assert "skipped" not in run.stdout


def test_naming_the_members_does_not_load_the_gpus_library():
    code = """if True:
        import sys
        from edged.joins.base import find_join, load_joins
        assert find_join("chain-cuda").device == "cuda"
        assert "edged.joins.bucket_cuda" not in sys.modules
        assert {"bucket-cuda", "chain-cuda", "hells"} <= set(load_joins())
        assert not [name for name in sys.modules if name.startswith("numba.cuda.")]
    """
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("member", members("cuda"), ids=named)
def test_a_member_without_the_gpus_library_names_the_extra(member, monkeypatch):
    monkeypatch.setattr(gpu, "INSTALLED", False)
    with pytest.raises(JobError, match=rf"'{member.name}' needs .* 'edged\[cuda\]'"):
        member(1, 1)


WORDS = st.sampled_from([0, 1, 2**31, 2**32 - 1, 0x80000001, 0xDEADBEEF])


@given(st.lists(st.lists(WORDS, min_size=3, max_size=3), min_size=1, max_size=5), st.data())
def test_bitmaps_are_decoded_as_the_twin_does(words, data):
    bits = np.array(words, np.uint32)
    base, met_base = data.draw(st.tuples(*[st.sampled_from([0, 5, 2**32 - 3])] * 2))
    mine = np.arange(base, base + len(words)).astype(np.uint32)
    met = np.arange(met_base, met_base + 96).astype(np.uint32)
    size = kernel.count(bits)
    assert size == naive.count(words)
    out = np.full((2, size + 2), -1, np.int64)
    assert kernel.decode(bits, mine, met, base, met_base, out[0], out[1], 1) == size + 1
    pairs = list(zip(*out[:, 1 : size + 1].tolist(), strict=True))
    assert pairs == naive.decode(words, mine, met, base, met_base)
    assert (out[:, [0, -1]] == -1).all()


@given(st.lists(st.integers(0, 3), min_size=1), st.lists(st.integers(0, 3), min_size=1), st.data())
def test_candidates_with_other_keys_are_left_out_in_order(left_keys, right_keys, data):
    numbers = st.integers(0, len(left_keys) - 1), st.integers(0, len(right_keys) - 1)
    pairs = data.draw(st.lists(st.tuples(*numbers)))
    columns = np.array(left_keys, np.int64), np.array(right_keys, np.int64)
    keys = np.array([[8, columns[0].ctypes.data, 0, columns[1].ctypes.data, 0]], np.int64)
    left, right = (np.array([p[side] for p in pairs], np.int64) for side in (0, 1))
    kept = kernel.keep_equal(keys, left, right)
    found = list(zip(left[:kept].tolist(), right[:kept].tolist(), strict=True))
    assert found == naive.keep_equal([(k,) for k in left_keys], [(k,) for k in right_keys], pairs)


def test_batches_grow_with_the_rate_as_far_as_the_promise_allows():
    batching = Batching(tolerance_us=100_000, fixed_us=1000, row_us=10)
    sizes = [batching.rows(rate, 10**6) for rate in (0, 1, 100, 10_000, 10**6, 10**9)]
    assert sizes == sorted(sizes)
    assert sizes[:2] == [1, 1]
    for rate, rows in zip((100, 10_000, 10**6), sizes[2:], strict=False):
        assert rows * 1e6 / rate + 1000 + 10 * rows <= 100_000
        assert (rows + 1) * 1e6 / rate + 1000 + 10 * (rows + 1) > 100_000
    assert batching.rows(10**9, 500) == 500


def test_batches_learn_what_a_row_costs():
    batching = Batching(tolerance_us=10_000, fixed_us=100)
    assert batching.rows(10**12, 1000) == 1000
    for _ in range(50):
        batching.observe(100, 100 + 100 * 20)
    assert batching.row_us == pytest.approx(20)
    assert batching.rows(10**12, 10**6) == pytest.approx(9900 / 20, abs=2)
    batching.observe(0, 5000)
    assert batching.row_us == pytest.approx(20)


def test_a_promise_that_cannot_be_kept_still_gives_a_row():
    assert Batching(tolerance_us=10, fixed_us=100, row_us=5).rows(1000, 100) == 1
