"""`edged send` and what it is made of: files in batches, the pace, a real process."""

from __future__ import annotations

import gzip
import itertools
import json
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from edged.cli.send import command
from edged.client.files import Pick, parse_columns, read_batches
from edged.client.replay_speed import due_us, parse_pace
from edged.control.door import ask
from edged.errors import ConfigError, PeerError
from tests.beat.support import SECOND, T0, Daemon, changed, copy_job, join_job
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


def daemon_of(tmp_path: Path, document: dict) -> Daemon:
    return Daemon(tmp_path, changed(document, promises={"latency": "50ms"}))


def csv(path: Path, first: int, count: int = 50) -> str:
    """Rows of one second each, from second `first` of the hour on."""
    lines = [f"1,{T0 // SECOND + first + i},{i}" for i in range(count)]
    times = [line.split(",") for line in lines]
    text = "".join(
        f"{k},{datetime.fromtimestamp(int(t), timezone.utc).isoformat()},{v}\n" for k, t, v in times
    )
    path.write_text("key,time,value\n" + text)
    return str(path)


class Sender:
    """`edged send` to one daemon."""

    def __init__(self, daemon: Daemon, tmp_path: Path) -> None:
        self.daemon, self.path = daemon, tmp_path

    def arguments(self, stream: str, producer: str, first: int, count: int) -> list[str]:
        file = csv(self.path / f"{first}.csv", first, count)
        to = f"127.0.0.1:{self.daemon.port}"
        return [file, "--to", to, "--stream", stream, "--producer", producer, "--json"]

    def __call__(
        self, stream: str, producer: str, first: int, *more: str, count: int = 50
    ) -> tuple[int, dict, str]:
        """Send rows from second `first` on; returns exit code, result and error."""
        given = [*self.arguments(stream, producer, first, count), *more]
        done = CliRunner().invoke(command, given)
        result = json.loads(done.stdout) if done.stdout else {}
        code = getattr(done.exception, "exit_code", done.exit_code)
        return code, result, str(done.exception)

    def process(self, stream: str, producer: str, first: int) -> tuple[int, dict, str]:
        """The same, as a process of its own."""
        run = [sys.executable, "-m", "edged", "send", *self.arguments(stream, producer, first, 50)]
        done = subprocess.run(run, capture_output=True, text=True, timeout=300)
        return done.returncode, json.loads(done.stdout), done.stderr


class TestNoRowVanishesUnsaid:
    """Regressions: acknowledged rows were dropped, and `edged send` ended with 0."""

    def test_after_an_end_of_stream_and_a_restart(self, tmp_path: Path) -> None:
        with daemon_of(tmp_path, copy_job()) as daemon:
            send = Sender(daemon, tmp_path)
            assert send("r", "a", 0)[0] == 0
            daemon.until(lambda s: s["jobs"]["copying"]["streams"]["r"]["ended"])
            code, result, _ = send("r", "b", 100)
            assert code == 0 and result["rows_acked"] == 50 and result["rows_late"] == 0
            code, result, error = send.process("r", "c", 20)
            assert code == 65 and result["rows_acked"] == result["rows_late"] == 50
            assert "50 rows came too late for stream r" in error
            events = ask(daemon.door, "events")["events"]
            (late,) = [e for e in events if e["kind"] == "stream.late"]
            assert late["facts"] == {"stream": "r", "rows": 50}
        with daemon_of(tmp_path, copy_job()) as daemon:
            send = Sender(daemon, tmp_path)
            assert send("r", "d", 200)[0] == 0
            code, result, _ = send("r", "e", 20)
            assert code == 65 and result["rows_late"] == 50
            assert send("r", "a", 100)[2].find("other content") > 0, "known after a restart, too"
            found = daemon.until(lambda s: s["jobs"]["copying"]["streams"]["r"]["rows"] == 250)
            assert found["drops"]["late"] == 100

    def test_of_streams_that_are_sent_one_after_the_other(self, tmp_path: Path) -> None:
        with daemon_of(tmp_path, join_job(idle_after="200ms")) as daemon:
            send = Sender(daemon, tmp_path)
            assert send("r", "a", 0, "--no-end")[0] == 0
            daemon.until(lambda s: s["jobs"]["joining"]["streams"]["r"]["staged"] == 0)
            code, result, _ = send("s", "b", 0)
            assert code == 0 and result["rows_late"] == 0
            daemon.until(lambda s: s["jobs"]["joining"]["operators"]["joined"].get("matches") == 50)

    def test_under_the_id_of_another_file_or_with_times_too_far_ahead(self, tmp_path: Path) -> None:
        with daemon_of(tmp_path, copy_job()) as daemon:
            send = Sender(daemon, tmp_path)
            assert send("r", "a", 0)[0] == 0
            code, result, error = send("r", "a", 100)
            assert code != 0 and not result
            assert "producer a has already sent 1 batches of other content" in error
            code, result, _ = send("r", "a", 0)
            assert code == 0 and result["batches_skipped"] == 1, "the same again is no loss"
            code, _, error = send("r", "a", 0, count=60)
            assert code != 0 and "other content" in error, "it has grown within a batch"
            code, result, error = send("r", "b", 10**9)
            assert code == 65 and result["rows_ahead"] == 50
            assert "50 are too far ahead" in error
