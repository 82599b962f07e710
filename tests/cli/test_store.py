"""`edged store`: what it says of a store, and what it leaves alone."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from edged.cli import cli
from edged.errors import ConfigError, StoreBusy, StoreError
from edged.platform.disk import SystemDisk
from edged.store import BeatRecord, Store, identity


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "store"
    with Store.open(path, segment_bytes=1 << 16) as made:
        made.commit(BeatRecord(1, b"{}", [], []))
    return path


def run(*words):
    """The result of a command; an error that ends it is raised."""
    done = CliRunner().invoke(cli, ["store", *map(str, words)], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done


def files(path):
    return {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}


def as_format(path, number):
    epoch = identity.read_identity(SystemDisk(), str(path / "identity"))
    identity.write_identity(SystemDisk(), str(path / "identity"), epoch, number)


def test_a_dry_run_of_a_migration_says_what_would_happen_and_changes_nothing(store):
    as_format(store, 1)
    before = files(store)
    told = json.loads(run("migrate", store, "--dry-run", "--json").output)
    assert (told["from"], told["to"], told["migrated"]) == (1, identity.FORMAT, False)
    assert len(told["changes"]) == identity.FORMAT - 1 and told["free"] > told["bytes"]
    assert "format 1 becomes" in run("migrate", store, "--dry-run").output
    assert files(store) == before


def test_a_migration_is_done_once_and_offline_only(store):
    as_format(store, 1)
    with Store.open(store):  # which migrates, too
        assert "nothing to do" in run("migrate", store, "--dry-run").output
        as_format(store, 1)
        with pytest.raises(StoreBusy):
            run("migrate", store)
    assert json.loads(run("migrate", store, "--json").output)["migrated"]
    assert identity.read_format(SystemDisk(), str(store / "identity")) == identity.FORMAT
    assert not json.loads(run("migrate", store, "--json").output)["migrated"]
    with Store.open(store) as again:
        assert [r.number for r in again.recover().records] == [1]


def test_a_store_of_an_unknown_format_and_what_is_no_store_are_refused(store, tmp_path):
    as_format(store, 99)
    before = files(store)
    with pytest.raises(StoreError, match=r"format 99.*install the edged"):
        run("migrate", store)
    assert files(store) == before
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="not a store"):
        run("migrate", tmp_path / "empty")
