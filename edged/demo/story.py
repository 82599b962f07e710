"""The run from start to end: start the processes, kill the daemon, check the tables."""

from __future__ import annotations

import contextlib
import json
import queue
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.live import Live

from edged.central.segments import list_segments, positions, read_rows, stream_hash
from edged.central.tables import read as read_table
from edged.central.tokens import new_token, token_line
from edged.control.door import ask
from edged.demo.picture import draw
from edged.demo.screen import Scene, show_tables, show_verdicts
from edged.demo.truth import TableVerdict, Truth
from edged.documents.reader import load_document
from edged.energy.settings import SIMULATED
from edged.errors import CentralError, ConfigError
from edged.platform.processes import ChildProcess, ChildProcessFailed, free_port

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
EXAMPLES = ROOT / "examples"
DEVICE = "la-haute-borne"
POLICY = "race_to_idle"
STREAMS = ("curve", "energy")
"""Streams of the job's page sinks."""
SPARK_STARTS_MAX = 3
DEADLINE_S = 170.0
"""Time limit of the whole run, which usually takes a third of it."""


@dataclass(frozen=True)
class Places:
    """Directories and files of one run."""

    build: Path

    @property
    def work(self) -> Path:
        """The working directory. The next run deletes it."""
        return self.build / "run"

    @property
    def door(self) -> Path:
        """The daemon's control socket."""
        return self.work / "door"


class Story:
    """One run of the demo."""

    def __init__(
        self, build: Path, console: Console, seconds: float, kills: int, board: str
    ) -> None:
        self.places, self.board = Places(build), board
        self.console, self.seconds, self.kills_wanted = console, seconds, kills
        self.scada = DATA / "scada_source_order.parquet"
        self.truth = Truth(self.scada, DATA / "plant_meter.parquet")
        self.scene = Scene(2 * pq.ParquetFile(self.scada).metadata.num_rows)
        self.started = time.monotonic()
        self.kills = 0
        self._spark_starts = 1
        self._parts: list[ChildProcess] = []

    def run(self) -> dict[str, Any]:
        """Run the demo; returns the summary, which is also written to `summary.json`.

        Raises ChildProcessFailed if a process dies by itself, or at DEADLINE_S.
        """
        self._prepare()
        try:
            with Live(
                self.scene.render(), console=self.console, refresh_per_second=4, transient=False
            ) as live:
                for _ in self._steps():
                    self._update()
                    live.update(self.scene.render())
                    time.sleep(0.2)
        finally:
            for part in reversed(self._parts):
                part.stop(5.0)
        return self._finish()

    # processes -------------------------------------------------------------------------------

    def _prepare(self) -> None:
        shutil.rmtree(self.places.work, ignore_errors=True)
        (self.places.work / "logs").mkdir(parents=True)
        work, token = self.places.work, new_token()
        for name, text in (("token", token), ("tokens", token_line(DEVICE, token) + "\n")):
            (work / name).touch(mode=0o600)
            (work / name).write_text(text)
        document = load_document(EXAMPLES / "power_curve.toml")
        self.address = f"127.0.0.1:{free_port()}"
        for stream in document["streams"].values():
            stream["source"] |= {"listen": self.address, "token_file": str(work / "token")}
        (work / "job.json").write_text(json.dumps(document, indent=1))

    def _start(self, name: str, *arguments: str) -> ChildProcess:
        part = ChildProcess(name, arguments, self.places.work / "logs")
        self._parts.append(part)
        return part

    def _steps(self) -> Iterator[None]:
        """The steps of the run. Yields each time the display should be redrawn."""
        work, say = self.places.work, self.scene.say
        self.collector = self._start(
            "collector", "edged", "central", "collect", "--landing", str(work / "landing"),
            "--listen", "127.0.0.1:0", "--tokens", str(work / "tokens"), "--json",
        )  # fmt: skip
        url = f"http://{self.collector.ready()['listen']}"
        say(f"collector listens on {url}")
        yield
        self.daemon = self._start(
            "daemon", "edged", "run", str(work / "job.json"), "--store", str(work / "store"),
            "--device", DEVICE, "--uplink", url, "--token-file", str(work / "token"),
            "--door", str(self.places.door), "--board", self.board, "--policy", POLICY, "--json",
        )  # fmt: skip
        self.daemon.ready()
        say(f"daemon listens for tuples on {self.address}")
        if self.board.startswith(SIMULATED):
            say(f"power, clocks and sleep states are of the board [bold]{self.board}[/]")
        known = [work / f"landing/schemas/{stream}@1.json" for stream in STREAMS]
        yield from self._until(lambda: all(file.exists() for file in known))
        self.spark = self._start(
            "spark", "edged", "central", "aggregate", str(EXAMPLES / "power_curve_tables.toml"),
            "--landing", str(work / "landing"), "--output", str(work / "tables"),
            "--checkpoint", str(work / "checkpoint"), "--master", "local[2]",
            "--trigger", "2s", "--json",
        )  # fmt: skip
        sensors = [
            self._start(
                f"sensor-{stream}", "edged.demo.sensors", stream, self.address,
                "--token-file", str(work / "token"), "--scada", str(self.scada),
                "--seconds", str(self.seconds),
            )
            for stream in ("power", "wind")
        ]  # fmt: skip
        say("Spark is starting; two sensors of four turbines each replay 2014 and 2015")
        yield from self._kills()
        yield from self._until(lambda: not any(s.running() for s in sensors))
        say("all readings are acknowledged")
        yield from self._until(self._drained)
        say("all pages have landed; Spark reads the rest")
        yield from self._until(self._aggregated)
        say("Spark has processed all rows")
        yield

    def _kills(self) -> Iterator[None]:
        """`kill -9` the daemon at equal distances of progress, and restart it each time."""
        for k in range(self.kills_wanted):
            goal = self.scene.tuples_total * (k + 1) // (self.kills_wanted + 1)
            yield from self._until(lambda goal=goal: self.scene.tuples >= goal)
            self.daemon.kill()
            self.kills += 1
            self.scene.say(f"[bold red]kill -9[/] of the daemon at {self.scene.tuples:,} tuples")
            yield
            self.daemon.restart()
            ready = self.daemon.ready()
            self.scene.say(
                f"[bold green]daemon restarted[/]: recovered to beat {ready['recovered_beat']} "
                f"({ready['replayed_beats']} beats replayed); the sensors reconnect"
            )
            yield

    def _until(self, done: Any) -> Iterator[None]:
        while not done():
            if time.monotonic() - self.started > DEADLINE_S:
                raise ChildProcessFailed(
                    f"the demo did not end within {DEADLINE_S:.0f} s; see {self.places.work}/logs"
                )
            yield

    # progress --------------------------------------------------------------------------------

    def _update(self) -> None:
        """Update the display's state. Raises ChildProcessFailed if a process died by itself."""
        self.scene.seconds = time.monotonic() - self.started
        for part in self._parts:
            if part.name != "spark" or not self._restart_spark(part):
                part.check()
        with contextlib.suppress(ConfigError):
            self.scene.daemon = ask(self.places.door, "status", timeout_s=5)
        self.scene.pages = sum(positions(self.places.work / "landing").values())
        if hasattr(self, "spark"):
            with contextlib.suppress(queue.Empty):
                while True:
                    self._on_event(self.spark.events.get_nowait())

    def _restart_spark(self, spark: ChildProcess) -> bool:
        """Restart the aggregation if it failed for a temporary reason; returns whether it did.

        On a loaded machine Spark's workers may start too late. The checkpoint holds the progress.
        """
        if spark.process.poll() != CentralError.exit_code or self._spark_starts >= SPARK_STARTS_MAX:
            return False
        self._spark_starts += 1
        self.scene.say(f"Spark failed; start number {self._spark_starts}")
        spark.restart()
        return True

    def _on_event(self, event: dict[str, Any]) -> None:
        if event.get("event") == "batch":
            if not self.scene.spark_batches:
                self.scene.say("Spark has merged its first batch")
            self.scene.spark_batches += 1
            self.scene.spark_rows += event["rows"]

    def _drained(self) -> bool:
        status = self.scene.daemon
        return bool(
            status
            and all(j["ended"] for j in status["jobs"].values())
            and status["store"]["backlog_pages"] == 0
        )

    def _landed_rows(self) -> int:
        landing = self.places.work / "landing"
        names = list_segments(landing)
        mine = [stream_hash(stream, 1) for stream in STREAMS]  # without device reports
        rows = [read_rows(landing, name) for name in names]
        return sum(int(r["tuples"][np.isin(r["stream_hash"], mine)].sum()) for r in rows)

    def _aggregated(self) -> bool:
        return self.scene.spark_rows >= self._landed_rows()

    # the end ---------------------------------------------------------------------------------

    def _finish(self) -> dict[str, Any]:
        tables = self.places.work / "tables"
        curve, energy = read_table(tables / "power_curve"), read_table(tables / "energy")
        verdicts = [self.truth.compare("power_curve", curve), self.truth.compare("energy", energy)]
        matches = self._operator("matches")
        if matches != self.truth.matches():
            wrong = f"the join found {matches} pairs, DuckDB {self.truth.matches()}"
            verdicts[0].differences.insert(0, wrong)
        months = self.truth.months(energy)
        picture = self.places.build / "power_curve.png"
        draw(curve, months, picture)
        show_tables(self.console, curve, months)
        show_verdicts(self.console, verdicts)
        summary = self._summary(verdicts, curve, months)
        path = self.places.build / "summary.json"
        path.write_text(json.dumps(summary, indent=1) + "\n")
        self.console.print(f"picture: {picture}   summary: {path}   ({summary['seconds']:.0f} s)")
        return summary

    def _summary(
        self, verdicts: list[TableVerdict], curve: pa.Table, months: list[tuple[str, float, float]]
    ) -> dict[str, Any]:
        turbines, meter = sum(m[1] for m in months), sum(m[2] for m in months)
        return {
            "identical": all(v.identical for v in verdicts),
            "tuples_in": self.scene.tuples,
            "matches": self._operator("matches"),
            "late": self.scene.late,
            "rows_landed": self._landed_rows(),
            "rows_out": sum(v.rows for v in verdicts),
            "kills": self.kills,
            "seconds": round(time.monotonic() - self.started, 1),
            "worst_relative_difference": max(v.worst for v in verdicts),
            "differences": [d for v in verdicts for d in v.differences[:20]],
            "pages": self.scene.pages,
            "spark_batches": self.scene.spark_batches,
            "latency_ms_p50": self.scene.daemon.get("latency_ms_p50"),
            "latency_ms_p99": self.scene.daemon.get("latency_ms_p99"),
            "energy": self._energy(),
            "energy_mwh": {"turbines": turbines / 1000, "meter": meter / 1000},
        }

    def _energy(self) -> dict[str, Any] | None:
        """The daemon's energy figures since its last start; None without a board."""
        energy = self.scene.daemon.get("energy")
        if energy is None:
            return None
        keys = (
            "board",
            "input",
            "joules_per_mtuple",
            "race_clock_s",
            "clock_s",
            "sleep_s",
            "saturated",
        )
        policy = energy["policy"]
        return {key: energy[key] for key in keys} | {
            "policy": policy["policy"], "problem": policy["problem"],
            "restored": energy["restored"],
        }  # fmt: skip

    def _operator(self, figure: str) -> int:
        jobs = self.scene.daemon["jobs"].values()
        return sum(int(o.get(figure, 0)) for j in jobs for o in j["operators"].values())
