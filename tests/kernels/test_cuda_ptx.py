"""Every CUDA kernel compiles for Jetson Orin and Thor, without a GPU, within its stated bounds."""

from __future__ import annotations

import importlib

import pytest

from kernels.cuda import figures, gpu
from tests.whole import count

ROWS = figures.rows()
CASES = [(row, capability) for row in ROWS for capability in figures.TARGETS]
SLICE = [(row, figures.TARGETS[k % len(figures.TARGETS)]) for k, row in enumerate(ROWS)]
"""Each kernel for one of the targets."""


def named(part):
    """The id of a kernel or a target."""
    if isinstance(part, tuple):
        return f"sm_{part[0]}{part[1]}"
    return part.name.removeprefix("kernels.cuda.")


def test_there_are_kernels_and_each_has_one_signature():
    assert len(ROWS) >= 19
    assert all(len(row.signatures) == 1 for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_a_kernel_names_a_twin_that_is_there(row):
    module, function = row.reference.rsplit(".", 1)
    assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.skipif(not gpu.INSTALLED, reason="numba-cuda is not installed: make cuda")
@pytest.mark.parametrize(("row", "capability"), count(SLICE, CASES), ids=named)
def test_a_kernel_compiles_to_ptx_and_machine_code_within_its_bounds(row, capability):
    ptx = figures.to_ptx(row, capability)
    assert f".target sm_{capability[0]}{capability[1]}" in ptx
    assert ".visible .entry" in ptx
    found = figures.assemble(row, ptx, capability)
    assert found.cubin_bytes > 1000
    assert 0 < found.registers <= figures.registers_max(row)
    assert found.spill_bytes == figures.SPILL_BYTES_MAX
    assert found.stack_bytes == figures.SPILL_BYTES_MAX
    assert found.shared_bytes <= figures.SHARED_BYTES_MAX


def test_an_assemblers_answer_without_figures_is_an_error():
    with pytest.raises(ValueError, match="registers"):
        figures.read_number(r"Used (\d+) registers", "ptxas info: nothing", "registers")
