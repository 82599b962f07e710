"""Which machine code is dropped when the sources of the kernels have changed."""

import json
from pathlib import Path

import numba
import pytest
from numba.core.caching import _CacheLocator

import kernels.cpu
from kernels import registry


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """Make a file of a named cache; `_CacheLocator` is numba's own: where it looks, we drop."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def make(module, name):
        source = Path(kernels.cpu.__file__).with_name(f"{module}.py")
        file = tmp_path / _CacheLocator.get_suitable_cache_subpath(str(source)) / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"code")
        return file

    return make


def change(tmp_path, *modules):
    """Make the stamp one that was written from other sources of `modules`."""
    (stamp,) = tmp_path.glob("*/kernels.json")
    changed = dict.fromkeys(("*", *modules), "another version's")
    stamp.write_text(json.dumps(json.loads(stamp.read_text()) | changed))


def test_a_named_cache_loses_what_is_of_unknown_age_and_nothing_else(tmp_path, cached):
    ours = cached("hash", "hash.f-1.py311.nbi")
    other = tmp_path / "expr_0123" / "expr.kernel-1.py311.nbi"
    other.parent.mkdir()
    other.write_bytes(b"code")
    registry.forget_stale()
    assert not ours.exists() and other.exists()
    ours = cached("hash", "hash.f-1.py311.nbi")
    registry.forget_stale()
    assert ours.exists(), "the sources are those that it was compiled from"
    (stamp,) = tmp_path.glob("*/kernels.json")
    stamp.write_text("damaged")
    registry.forget_stale()
    assert not ours.exists()


def test_only_kernels_of_changed_modules_and_those_that_import_them_are_dropped(tmp_path, cached):
    registry.forget_stale()
    hash_, chain, time = (
        cached(module, f"{module}.f-1.py311.nbi") for module in ("hash", "chain", "text_time")
    )
    change(tmp_path, *importers_of("kernels.cpu.rings"))
    registry.forget_stale()
    assert not chain.exists() and hash_.exists() and time.exists()
    change(tmp_path, *importers_of("kernels.registry"))
    registry.forget_stale()
    assert not hash_.exists() and not time.exists()


def importers_of(name):
    """The modules whose digests depend on a module's source, as the registry's own digests say."""
    sources = registry._sources()
    before = registry._digests_with_imports(sources)
    plain = registry._digest

    def with_change(files):
        files = list(files)
        return plain(files) + "'" * any(registry._module(file) == name for file in files)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_digest", with_change)
        after = registry._digests_with_imports(sources)
    changed = {module for module in before if before[module] != after[module]}
    assert name in changed
    return changed
