"""`edged send` and what it is made of: files in batches, the pace, a real process."""

from __future__ import annotations

import gzip
import itertools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from edged.cli.send import command
from edged.client.files import Pick, parse_columns, read_batches
from edged.client.replay_speed import due_us, parse_pace
from edged.errors import ConfigError, PeerError
from tests.sources.tcp_rig import ARROW, Rig, rows


def send(*arguments: str) -> dict:
    result = CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


@pytest.fixture
def table() -> pa.Table:
    return pa.Table.from_batches([rows(0, 10_000)])


@pytest.fixture
def parquet(tmp_path: Path, table: pa.Table) -> str:
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=777)
    return str(tmp_path / "rows.parquet")


def test_parquet_arrives_whole_and_acknowledged(parquet: str, table: pa.Table) -> None:
    with Rig() as rig:
        outcome = send(
            parquet, "--to", rig.address, "--stream", "s", "--producer", "p", "--batch", "1000"
        )
        assert outcome["rows"] == outcome["rows_acked"] == 10_000
        assert rig.table().combine_chunks() == table.combine_chunks()
        assert rig.staging.producers.seq.tolist() == [0, 10]
        assert rig.staging.producers.ended.tolist() == [0, 1]


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "ndjson"])
def test_text_arrives_with_the_types_it_is_given(
    tmp_path: Path, table: pa.Table, suffix: str
) -> None:
    file = tmp_path / f"rows.{suffix}"
    plain = table.slice(1, 2000).rename_columns(["at", "key", "label", "value"])
    if suffix == "ndjson":
        lines = [json.dumps({**row, "at": row["at"].isoformat()}) for row in plain.to_pylist()]
        file.write_text("\n".join(lines))
    else:
        text = pa.BufferOutputStream()
        pa.csv.write_csv(plain, text)
        data = text.getvalue().to_pybytes()
        file.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    with Rig() as rig:
        columns = "time:timestamp=at, key:int32, value:float64, name:string=label"
        send(
            str(file), "--to", rig.address, "--stream", "s", "--producer", "p", "--columns", columns
        )
        got = rig.table().to_pylist()
        expected = table.slice(1, 2000).to_pylist()
        for row in got + expected:
            row["name"] = row["name"] or ""
        assert got == expected


def test_a_sender_that_was_killed_goes_on_where_edged_stopped(parquet: str) -> None:
    arguments = ["--stream", "s", "--producer", "p", "--batch", "100", "--pace", "0.02x", "--json"]
    with Rig() as rig:
        run = [sys.executable, "-m", "edged", "send", parquet, "--to", rig.address, *arguments]
        process = subprocess.Popen(run)
        rig.until(lambda: rig.count() >= 500, "first rows", 120)
        process.send_signal(signal.SIGKILL)
        process.wait()
        rig.until(lambda: rig.counter("connections") == 0)
        arguments[arguments.index("0.02x")] = "full"
        outcome = send(parquet, "--to", rig.address, *arguments[:-1])
        assert outcome["batches_skipped"] >= 5
        assert rig.all_keys() == list(range(10_000))


@pytest.mark.parametrize("more", [(), ("--no-end",), ("--producer", "p")])
def test_what_edged_refuses_is_said(parquet: str, more: tuple[str, ...]) -> None:
    with Rig() as rig, pytest.raises(PeerError, match="no stream 'x' here"):
        send(parquet, "--to", rig.address, "--stream", "x", *more)


def test_mistakes_are_named(tmp_path: Path, parquet: str) -> None:
    to = ("--to", "127.0.0.1:1", "--stream", "s")
    for arguments, text in (
        (("none.parquet", *to), "none.parquet"),
        (("none.xlsx", *to), "ends in none of"),
        ((parquet, *to, "--columns", "a=b"), "no column b; there are time, key, name, value"),
        ((parquet, *to, "--columns", "a:thing=b"), "is not a type"),
        ((parquet, *to, "--columns", "a="), "is not name"),
        ((parquet, *to, "--pace", "soon"), "is not a pace"),
        ((parquet, "--to", "nowhere", "--stream", "s"), "host:port"),
        ((parquet, *to, "--token-file", str(tmp_path / "none")), "none"),
    ):
        with pytest.raises(ConfigError, match=text):
            send(*arguments)


def test_batches_do_not_depend_on_how_files_are_cut(tmp_path: Path, table: pa.Table) -> None:
    made = []
    for cuts in ([0, 10_000], [0, 1, 4000, 4001, 10_000]):
        files = []
        for a, b in itertools.pairwise(cuts):
            files.append(str(tmp_path / f"{len(made)}-{a}.parquet"))
            pq.write_table(table.slice(a, b - a), files[-1], row_group_size=333)
        made.append(list(read_batches(files, 512)))
    assert [b.num_rows for b in made[0]] == [512] * 19 + [272]
    assert made[0] == made[1]


def test_columns_are_read_from_their_text() -> None:
    assert parse_columns("a, b=c ,d:int32 = e") == [
        Pick("a", "a"), Pick("b", "c"), Pick("d", "e", pa.int32()),
    ]  # fmt: skip


def test_a_pace_is_a_factor_of_event_time() -> None:
    assert [parse_pace(p) for p in ("full", "real_time", "60x", "0.5")] == [0, 1, 60, 0.5]
    for wrong in ("", "x", "0", "-1x", "nan", "inf", "1e10x"):
        with pytest.raises(ValueError, match="is not a pace"):
            parse_pace(wrong)
    assert due_us(1_000_000, 0, 50, 0) == 50
    assert due_us(1_000_000, 400_000, 50, 60) == 50 + 10_000


def test_a_paced_file_takes_its_time(tmp_path: Path) -> None:
    file = str(tmp_path / "a.parquet")
    pq.write_table(pa.Table.from_batches([rows(0, 500)], ARROW), file)
    with Rig() as rig:
        began = time.monotonic()
        arguments = ("--stream", "s", "--pace", "0.001x", "--batch", "50", "--producer", "p")
        send(file, "--to", rig.address, *arguments)
        assert time.monotonic() - began >= 0.49
        assert rig.count() == 500
