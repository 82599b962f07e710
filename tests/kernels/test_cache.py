"""Which machine code is dropped when the sources of the kernels have changed."""

from pathlib import Path

import numba
from numba.core.caching import _CacheLocator

import kernels.cpu
from kernels import registry


def test_a_named_cache_loses_the_kernels_that_changed_and_nothing_else(tmp_path, monkeypatch):
    """`_CacheLocator` is numba's own: where it will look is where we must drop."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    source = Path(kernels.cpu.__file__).with_name("hash.py")
    ours = tmp_path / _CacheLocator.get_suitable_cache_subpath(str(source)) / "hash.f-1.py311.nbi"
    other = tmp_path / "expr_0123" / "expr.kernel-1.py311.nbi"
    for cached in (ours, other):
        cached.parent.mkdir()
        cached.write_bytes(b"old")
    registry.forget_stale()
    assert not ours.exists() and other.exists()
    ours.write_bytes(b"new")
    registry.forget_stale()
    assert ours.exists(), "the sources are those that it was compiled from"
    (stamp,) = tmp_path.glob("*/kernels.sha256")
    stamp.write_text("another version's")
    registry.forget_stale()
    assert not ours.exists()
