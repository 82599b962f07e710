"""The daemon as a process: it sleeps when idle, TCP holds a flood, fatal input is set aside."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pyarrow as pa

from edged.beat.heart import CRASHES_MAX
from tests.beat import crashing
from tests.beat.loop import batch, now_us
from tests.beat.support import ARROW, Daemon, changed, copy_job
from tests.beat.test_heart import quarantined


def switches(pid, kinds=("voluntary", "nonvoluntary")):
    """Context switches of all threads of a process so far; those that are not voluntary are what
    others on the machine make of its work."""
    names = tuple(f"{kind}_ctxt_switches" for kind in kinds)
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with (task / "status").open() as f:
            total += sum(int(line.split()[1]) for line in f if line.startswith(names))
    return total


def come_to_rest(pid, seconds=120.0):
    """Wait until the process has been asleep for half a second."""
    deadline, seen = time.monotonic() + seconds, -1
    while (now := switches(pid)) != seen:
        assert time.monotonic() < deadline
        seen = now
        time.sleep(0.5)


def cpu_s(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_an_idle_daemon_does_not_wake(tmp_path):
    document = changed(copy_job(), promises={"latency": "50ms"})
    with Daemon(tmp_path, document, "--workers", "4") as daemon, daemon.producer() as producer:
        producer.send(batch([1]))
        producer.flush()
        pid = daemon.process.pid
        come_to_rest(pid)
        status = daemon.status()
        come_to_rest(pid)
        before, cpu = switches(pid), cpu_s(pid)
        time.sleep(3.0)
        assert switches(pid) - before <= 2
        assert cpu_s(pid) - cpu <= 0.01
        assert daemon.status()["wakes"] - status["wakes"] <= 4, "those two questions"
        assert daemon.status()["beat"] == status["beat"]


def flood(rows, a_message):
    """A plain Arrow stream with a schema message for stream r."""
    out = pa.BufferOutputStream()
    schema = ARROW.with_metadata({"edged.stream": "r"})
    with pa.ipc.new_stream(out, schema) as writer:
        now = now_us()
        for at in range(0, rows, a_message):
            values = batch(list(range(at, at + a_message)), [now] * a_message)
            writer.write_batch(pa.record_batch(list(values.values()), schema=schema))
    return out.getvalue().to_pybytes()


def test_a_producer_ten_times_faster_than_the_job_is_held_by_tcp_and_loses_nothing(tmp_path):
    rows = 600_000
    document = changed(
        copy_job(),
        operators={"slowed": {"type": "slow", "input": "r"}},
        promises={"latency": "500ms", "memory": "4MiB"},
        sinks={"rows": {"type": "pages", "input": "slowed"}},
    )
    data = flood(rows, 4000)
    sent = [0]
    with Daemon(tmp_path, document, module="tests.beat.crashing") as daemon:
        sock = socket.create_connection(("127.0.0.1", daemon.port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)

        def send():
            view = memoryview(data)
            while sent[0] < len(data):
                sent[0] += sock.send(view[sent[0] : sent[0] + 65536])

        sender = threading.Thread(target=send)
        sender.start()
        rss, ahead, taken = [], [], 0
        while taken < rows:
            time.sleep(0.1)
            taken = daemon.stream("copying", "r")["rows"]
            rss.append(daemon.proc("VmRSS"))
            ahead.append(sent[0] - taken * len(data) // rows)
        sender.join()
        sock.close()
        status = daemon.until(lambda s: s["jobs"]["copying"]["streams"]["r"]["ended"])
        assert status["jobs"]["copying"]["sinks"]["rows"]["rows"] == rows
        assert status["jobs"]["copying"]["streams"]["r"]["late"] == 0
        assert len(rss) > 10, "the job was slower than the sender"
        assert max(rss[5:]) - min(rss[2:6]) < 24 << 10, "memory stays flat (kB)"
        assert max(ahead) < len(data) * 3 // 4, "the sender was blocked"


def test_a_message_that_kills_the_process_is_set_aside_alone_whatever_comes_beside_it(tmp_path):
    """Regression: crashes were counted by beat number, which rows of other producers advanced."""
    document = changed(
        copy_job(late="process"),
        operators={"p": {"type": "poison", "input": "r"}},
        promises={"latency": "30ms"},
        sinks={"rows": {"type": "pages", "input": "p"}},
    )
    daemon = Daemon(tmp_path, document, module="tests.beat.crashing")
    deaths, good = 0, 1
    with daemon, daemon.producer(timeout_s=60) as producer, daemon.producer(id="good") as other:
        other.send(batch([0]))
        other.flush()
        producer.send(batch([5, crashing.EXITS]))
        while not quarantined(tmp_path / "store"):
            producer.poll()
            if other.poll() == good:
                other.send(batch([good]))
                good += 1
            time.sleep(0.01)
            if not daemon.running():
                assert daemon.process.returncode == 139
                deaths += 1
                daemon.restart()
        assert deaths == CRASHES_MAX
        other.send(batch([good]))
        other.flush()
        producer.flush()
        status = daemon.until(lambda s: s["jobs"]["copying"]["streams"]["r"]["staged"] == 0)
        assert status["set_aside_rows"] == 2
        assert other.acked == good + 1
    assert quarantined(tmp_path / "store") == [5, crashing.EXITS], "and nothing of the other's"


def test_rows_that_were_acked_but_not_raced_before_a_kill_are_raced_without_new_input(tmp_path):
    promises = {"latency": "6s", "ack_within": "50ms"}
    with Daemon(tmp_path, changed(copy_job(), promises=promises)) as daemon:
        with daemon.producer() as producer:
            producer.send(batch([1, 2, 3]))
            producer.end()
        assert daemon.status()["rows"] == 0, "its race waits for as long as was promised"
        daemon.kill()
        daemon.restart()
        assert daemon.ready()["replayed_beats"] > 0
        daemon.until(lambda s: all(j["ended"] for j in s["jobs"].values()), 30)
        assert daemon.status()["rows"] == 3
