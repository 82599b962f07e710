"""The loop of a child: rows in, outputs and states out, until the daemon closes the socket."""

from __future__ import annotations

import socket
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged.operators.python_child import channel, sandbox

if TYPE_CHECKING:
    from edged.operators.python_child.instances import Instances

REASON_BYTES_MAX = 4000


def main(file: int) -> None:
    """Serve the daemon at the other end of this socket."""
    sock = socket.socket(fileno=file)
    code = channel.receive(sock)["code"]
    enforced = sandbox.confine(code["parent"])  # pyarrow starts threads
    try:
        instances, more = _load(code)
    except BaseException:
        channel.send(sock, {"refused": _reason()})
        return
    inbox, outbox = channel.Area(code["inbox"]), channel.Area(code["outbox"])
    channel.send(sock, {"ready": {"enforced": enforced + more}})
    child = _Child(instances, inbox, outbox)
    while True:
        try:
            frame = channel.receive(sock)
        except EOFError:
            return
        channel.send(sock, child.serve(frame))


def _load(code: dict[str, Any]) -> tuple[Instances, list[str]]:
    import pyarrow as pa

    from edged.operators.python_child.instances import Code, Instances

    outputs = {
        name: pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(text)))
        for name, text in code["outputs"].items()
    }
    enforced = sandbox.limit_memory(code["memory_bytes"])
    loaded = Code(
        code["source"], code["filename"], code["settings"], code["files"], code["partitions"],
        outputs,
    )  # fmt: skip
    return Instances(loaded), enforced


class _Child:
    """Serves frames."""

    def __init__(self, instances: Instances, inbox: channel.Area, outbox: channel.Area) -> None:
        self._instances, self._inbox, self._outbox = instances, inbox, outbox
        self._at = channel.OUTBOX_HEAD_BYTES
        outbox.mark(channel.IDLE)

    def serve(self, frame: dict[str, Any]) -> dict[str, Any]:
        """The answer to a frame."""
        self._at = channel.OUTBOX_HEAD_BYTES
        if "load" in frame:
            for partition, offset, size in frame["load"]:
                data = self._inbox.of(offset + size)[offset : offset + size]
                self._instances.load(partition, data)
            return {"loaded": True}
        started = time.monotonic_ns()
        outputs, failed = self._run(frame)
        answer = {"done": frame["run"], "failed": failed, "states": [], "unsaved": ""}
        answer["outputs"] = [] if frame["quiet"] else self._put_outputs(outputs)
        if frame["save"] and not failed:
            try:
                answer["states"] = [
                    [partition, *self._put(data)] for partition, data in self._instances.save()
                ]
            except Exception:
                answer["unsaved"] = _reason()
        self._outbox.mark(channel.IDLE)
        answer["us"] = (time.monotonic_ns() - started) // 1000
        return answer

    def _run(self, frame: dict[str, Any]) -> tuple[dict[str, list[Any]], list[list[Any]]]:
        """Outputs by name, and the partitions that failed, with reasons."""
        import pyarrow as pa

        outputs: dict[str, list[Any]] = {}
        failed: list[list[Any]] = []
        memory = pa.py_buffer(self._inbox.of(frame["size"])).slice(0, frame["size"])
        if self._instances.stateful:  # an instance may keep rows, and the inbox is written again
            memory = pa.py_buffer(memory.to_pybytes())
        with pa.ipc.open_stream(memory) as opened:
            batch = opened.read_next_batch()
        for partition, start, stop in frame["bounds"]:
            self._outbox.mark(partition)
            try:
                made = list(self._instances.run(partition, batch.slice(start, stop - start)))
            except Exception:
                failed.append([partition, _reason()])
                continue
            for name, batches in made:
                outputs.setdefault(name, []).extend(batches)
        self._outbox.mark(channel.FINISHING)
        return outputs, failed

    def _put_outputs(self, outputs: dict[str, list[Any]]) -> list[list[Any]]:
        import pyarrow as pa

        placed = []
        for name, batches in outputs.items():
            table = pa.Table.from_batches(batches).combine_chunks()
            for batch in table.to_batches():
                size = pa.ipc.get_record_batch_size(batch) + batch.schema.serialize().size + 64
                memory = memoryview(self._outbox.grown(self._at + size))
                place = pa.py_buffer(memory[self._at : self._at + size])
                sink = pa.FixedSizeBufferWriter(place)
                with pa.ipc.new_stream(sink, batch.schema) as writer:
                    writer.write_batch(batch)
                placed.append([name, self._at, sink.tell()])
                self._at += -(-size // 64) * 64
        return placed

    def _put(self, data: bytes) -> tuple[int, int]:
        at = self._at
        self._outbox.grown(at + len(data))[at : at + len(data)] = data
        self._at += len(data)
        return at, len(data)


def _reason() -> str:
    """The exception that is handled, without edged's own frames."""
    kind, problem, trace = sys.exc_info()
    own = str(Path(__file__).parent)
    frames = [f for f in traceback.extract_tb(trace) if not f.filename.startswith(own)]
    lines = traceback.format_exception_only(kind, problem)
    text = "".join([*lines, *traceback.format_list(frames[-3:])]).strip()
    return text[:REASON_BYTES_MAX]


if __name__ == "__main__":
    main(int(sys.argv[1]))
