"""The intake of a gateway before a daemon whose answers the test chooses."""

import asyncio
import contextlib
import struct

import pyarrow as pa
import pytest
from anyio import fail_after, move_on_after

from edged.central.admission import Delivery
from edged.central.gateway import GatewayRegistrations
from edged.central.gateway_intake import GatewayIntake, Taken
from edged.central.group_commit import CommitterBusy
from edged.client import frames
from edged.data.carried import carried_schema
from edged.data.schema import Schema
from edged.errors import SchemaMismatch
from edged.pages.format import verify
from tests.central.support import DEVICE, EPOCH, SCHEMA, make_page

REST = Taken("others", carried_schema())


class Route:
    """A producer's connection, as the daemon sees it."""

    def __init__(self, reader, writer, producer, first):
        self._reader, self._writer = reader, writer
        self.partition, self.first = int(producer.rpartition(b"/")[2]), first

    def greet(self, acked=0, staged=0):
        self._writer.write(frames.numbered(frames.HELLO, acked) + frames.link(staged, 0))

    def ack(self, seq):
        self._writer.write(frames.numbered(frames.ACK, seq))

    def refuse(self, text):
        self._writer.write(frames.text_frame(frames.ERROR, text))


class Daemon:
    """Takes connections; reads nothing but their greetings."""

    def __init__(self):
        self.routes = asyncio.Queue()
        self.open = 0

    async def connected(self, reader, writer):
        self.open += 1
        with contextlib.suppress(OSError, EOFError):
            head = await reader.readexactly(8)
            body = await reader.readexactly(struct.unpack("<I", head[4:])[0])
            said = pa.ipc.read_schema(pa.py_buffer(head + body)).metadata
            first = int(said.get(frames.FROM_KEY, b"0"))
            self.routes.put_nowait(Route(reader, writer, said[frames.PRODUCER_KEY], first))
            while await reader.read(1 << 16):
                pass
        writer.close()
        self.open -= 1

    async def route(self, greet=True, **options):
        with fail_after(5):
            found = await self.routes.get()
        if greet:
            found.greet(**options)
        return found


def serve(tmp_path, scenario):
    """Run `scenario(daemon, intake)`."""

    async def run():
        daemon, path = Daemon(), str(tmp_path / "s")
        async with await asyncio.start_unix_server(daemon.connected, path):
            intake = GatewayIntake(path, {}, REST, lambda *_: SCHEMA)
            try:
                with fail_after(10):
                    await scenario(daemon, intake)
            finally:
                intake.close()
                with move_on_after(2):
                    while daemon.open:
                        await asyncio.sleep(0.01)

    asyncio.run(run())


def delivery(*pages, counter=1):
    return Delivery(DEVICE, EPOCH, counter, 7, [(verify(p), memoryview(p)) for p in pages])


def submit(intake, *pages, **options):
    """The outcome of a delivery, as a future."""
    found = asyncio.get_running_loop().create_future()
    intake.submit(delivery(*pages, **options), found.set_result)
    return found


def two(seq):
    return make_page(seq, partition=0), make_page(seq, partition=1)


@pytest.mark.parametrize("steps", range(5))
def test_a_page_is_not_acknowledged_when_its_route_closes_while_another_page_waits(tmp_path, steps):
    async def scenario(daemon, intake):
        waiting = submit(intake, *two(1))
        first, second = await daemon.route(), await daemon.route()
        assert (first.partition, second.partition) == (0, 1)
        await asyncio.sleep(0.05)
        first.ack(1)
        for _ in range(steps):
            await asyncio.sleep(0)
        newer = submit(intake, make_page(1), counter=2)  # closes the routes of the session before
        assert isinstance(await waiting, CommitterBusy)
        await daemon.route(acked=1)
        await newer

    serve(tmp_path, scenario)


def test_each_delivery_has_an_answer_where_another_one_closes_their_routes(tmp_path):
    async def scenario(daemon, intake):
        one = submit(intake, make_page(1))
        first = await daemon.route()
        await asyncio.sleep(0.05)
        both = submit(intake, make_page(2), make_page(1, partition=1))
        second = await daemon.route(greet=False)
        first.refuse("the job is replaced")
        assert isinstance(await one, CommitterBusy)
        second.greet()
        assert isinstance(await both, CommitterBusy)
        await asyncio.sleep(0.05)
        assert daemon.open == 0

    serve(tmp_path, scenario)


def test_pages_on_their_way_are_durable_before_a_greeting_skips_numbers(tmp_path):
    async def scenario(daemon, intake):
        one = submit(intake, make_page(1))
        route = await daemon.route()
        await asyncio.sleep(0.05)
        later = submit(intake, make_page(5))
        await asyncio.sleep(0.1)
        assert daemon.routes.empty()
        route.ack(1)
        assert (await one).acked == {("power", 0): 1}
        again = await daemon.route(acked=4)
        assert again.first == 5
        await asyncio.sleep(0.05)
        again.ack(5)
        assert (await later).acked == {("power", 0): 5}

    serve(tmp_path, scenario)


def test_a_schema_of_a_job_before_is_unknown_where_this_one_cannot_take_it(tmp_path):
    schema, other = Schema.from_json(SCHEMA), Schema.from_json(SCHEMA.replace('"v"', '"w"'))
    GatewayRegistrations(tmp_path, {}, REST).register("power", 1, SCHEMA)
    assert GatewayRegistrations(tmp_path, {}, REST).schema("power", 1) == SCHEMA
    assert GatewayRegistrations(tmp_path, {"power": Taken("r", schema)}, None).schema("power", 1)
    for taken in ({"power": Taken("r", other)}, {"others": Taken("r", schema)}):
        now = GatewayRegistrations(tmp_path, taken, None)
        assert now.schema("power", 1) is None
        with pytest.raises(SchemaMismatch):
            now.register("power", 1, SCHEMA)
