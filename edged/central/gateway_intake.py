"""The intake of a gateway: deliveries go into the daemon, page by page, and are acknowledged when
the daemon has committed them.

A delivery is admitted by the collector's rules (`edged.central.admission`).  The high waters are
the daemon's: a partition's route learns its own when it is opened.  When a route ends, all that is
known of its device is forgotten, and learned again with the device's next request.

Beside the collector's rules:

- A partition that the daemon does not know begins with the first page that its device has.
- A page that is forwarded may follow any other: the centre knows what is missing.
- Telemetry is forwarded without a number, at most once, and dropped where nothing forwards.
- A delivery that is not durable within ANSWER_S is refused with a pause; its pages go on into the
  daemon, which knows them when they come again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from anyio import fail_after

from edged.central.admission import (
    DAMAGED,
    FENCED,
    LIMIT,
    Delivery,
    DeliveryOutcome,
    PageProblem,
    admit,
)
from edged.central.gateway_route import DaemonRoute, RouteClosed, RouteName
from edged.central.group_commit import CommitterBusy, OnOutcome
from edged.central.highwater import HighWaterTable
from edged.central.segments import digest64
from edged.data.schema import Schema
from edged.errors import CentralError, PageError
from edged.pages.container import CARRIED_PAGE_BYTES_MAX
from edged.pages.format import Header
from edged.pages.read import PageDecoder
from edged.uplink.telemetry import STREAM as TELEMETRY

ANSWER_S = 4.0
"""Less than the least time that a device waits for its answer (`edged.uplink.answer_wait`)."""
ROUTES_MAX = 8192
"""Routes that stay open; of more, those of the device that was silent longest are closed."""
_LOG = logging.getLogger(__name__)
_Place = tuple[int, str, int]
"""Epoch, stream and partition."""
_Page = tuple[Header, memoryview]


@dataclass(frozen=True, slots=True)
class Taken:
    """A stream of the daemon, and its columns."""

    stream: str
    schema: Schema


@dataclass(slots=True)
class _KnownDevice:
    """What is known of a device while its routes are open."""

    table: HighWaterTable = field(default_factory=HighWaterTable)
    routes: dict[_Place, DaemonRoute] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while pages are admitted and sent, not while they become durable."""

    def close(self) -> None:
        for route in self.routes.values():
            route.close()
        self.routes.clear()


class GatewayIntake:
    """A `DeliveryCommitter`; created and used on an event loop.

    `taken` is the daemon's stream for each stream of the devices that is decoded, `rest` the one
    for all others; `schema_of` returns a registered schema.
    """

    failure: CentralError | None = None

    def __init__(
        self,
        socket: str,
        taken: Mapping[str, Taken],
        rest: Taken | None,
        schema_of: Callable[[str, int], str | None],
    ) -> None:
        self.groups = 0
        self._socket, self._taken, self._rest = socket, taken, rest
        self._schema_of = schema_of
        self._devices: OrderedDict[str, _KnownDevice] = OrderedDict()
        self._decoders: dict[str, PageDecoder] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, delivery: Delivery, on_outcome: OnOutcome) -> None:
        """See `DeliveryCommitter`."""
        task = asyncio.create_task(self._answer(delivery, on_outcome))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, delivery: Delivery, on_outcome: OnOutcome) -> None:
        try:
            outcome: DeliveryOutcome | CentralError = await self.commit(delivery)
        except CentralError as problem:
            outcome = problem
        except Exception as problem:  # a request without an answer would hold its memory for ever
            _LOG.exception("a delivery of device %s failed", delivery.device)
            outcome = CentralError(f"the gateway failed: {problem!r}")
        on_outcome(outcome)

    async def commit(self, delivery: Delivery) -> DeliveryOutcome:
        """See `DeliveryCommitter`."""
        try:
            with fail_after(ANSWER_S):
                return await self._commit(delivery)
        except TimeoutError:
            raise CommitterBusy(
                "the gateway has not made these pages durable yet: its job waits, or its store is"
                " full"
            ) from None

    def close(self) -> None:
        """Close all routes."""
        for device in self._devices.values():
            device.close()

    async def _commit(self, delivery: Delivery) -> DeliveryOutcome:
        device = self._devices.setdefault(delivery.device, _KnownDevice())
        self._devices.move_to_end(delivery.device)
        try:
            async with device.lock:
                await self._open(device, delivery)
                if self._devices.get(delivery.device) is not device:
                    raise RouteClosed("its routes were closed meanwhile")
                outcome = self._admit(device, delivery)
                waits = [  # looked up now: another delivery may close the device's routes
                    (device.routes[delivery.epoch, stream, partition], seq)
                    for (stream, partition), seq in outcome.acked.items()
                    if stream != TELEMETRY
                ]
            for route, seq in waits:
                await route.durable(seq)
        except RouteClosed as problem:
            self._forget(delivery.device, device)
            if problem.fenced:
                return DeliveryOutcome(problem=PageProblem(FENCED, str(problem)))
            raise CommitterBusy(f"the gateway's daemon takes nothing now: {problem}") from None
        finally:
            if self._devices.get(delivery.device) is not device:
                device.close()  # routes that were opened after it was forgotten
        self.groups += 1
        return outcome

    def _forget(self, name: str, device: _KnownDevice) -> None:
        device.close()
        if self._devices.get(name) is device:
            del self._devices[name]

    def _stream(self, stream: str) -> Taken | None:
        return self._taken.get(stream, self._rest)

    # -- routes

    async def _open(self, device: _KnownDevice, delivery: Delivery) -> None:
        """Open the routes that the delivery needs, and learn their high waters."""
        counter, nonce = device.table.session(delivery.epoch)
        if (counter, nonce) != (0, 0) and (delivery.counter, delivery.nonce) != (counter, nonce):
            if delivery.counter <= counter:
                return  # it is fenced
            device.close()  # the daemon fences by its routes' greetings
        firsts: dict[_Place, Header] = {}
        for header, _ in delivery.pages:
            firsts.setdefault((header.epoch, header.stream, header.partition), header)
        before = len(device.routes)
        for place, header in firsts.items():
            await self._learn(device, delivery, place, header)
        for route in [device.routes[place] for place in firsts if place in device.routes]:
            await route.ready()
        if len(device.routes) > before:
            self._close_surplus(device)

    async def _learn(
        self, device: _KnownDevice, delivery: Delivery, place: _Place, first: Header
    ) -> None:
        taken, route = self._stream(first.stream), device.routes.get(place)
        if taken is None or not self._schema_of(first.stream, first.version):
            return
        if route is not None and route.closed is not None:
            raise route.closed
        if route is None:
            route = await self._route(delivery, taken, first, 0)
            device.routes[place] = route
        high = route.high
        jumps = taken is self._rest or high == 0 or delivery.declares(first, high)
        if first.seq > high + 1 and jumps and first.stream != TELEMETRY:
            await route.durable(high)  # the next greeting gives up what the daemon has not taken
            route.close()
            route = await self._route(delivery, taken, first, first.seq)
            device.routes[place] = route
            high, route.high = first.seq - 1, first.seq - 1
        stream = digest64(first.stream)
        if high > device.table.high(first.epoch, stream, first.partition)[0]:
            device.table.raise_high(first.epoch, stream, first.partition, high, route.sum)

    async def _route(
        self, delivery: Delivery, taken: Taken, first: Header, number: int
    ) -> DaemonRoute:
        name = f"{delivery.device}/{first.epoch:016x}/{first.stream}/{first.partition}"
        session = (delivery.counter, delivery.nonce)
        return await DaemonRoute.open(
            self._socket, RouteName(taken.stream, name, session), taken.schema, number
        )

    def _close_surplus(self, mine: _KnownDevice) -> None:
        open_routes = sum(len(device.routes) for device in self._devices.values())
        for name, device in list(self._devices.items()):
            if open_routes <= ROUTES_MAX or device is mine:
                return
            open_routes -= len(device.routes)
            self._forget(name, device)

    # -- pages

    def _admit(self, device: _KnownDevice, delivery: Delivery) -> DeliveryOutcome:
        """Decide on the delivery, and send what is new."""
        outcome = admit(
            delivery,
            device.table,
            lambda stream, version: self._schema_of(stream, version) is not None,
            lambda header: None,
        )
        for header, page in outcome.landed:
            try:
                self._send(device, delivery, header, page)
            except PageError as problem:
                self._undo(device, outcome, header, problem)
                break
        return outcome

    def _undo(
        self, device: _KnownDevice, outcome: DeliveryOutcome, header: Header, problem: PageError
    ) -> None:
        """Acknowledge nothing, because of a page that cannot be read: what was sent before it comes
        again."""
        kind = LIMIT if header.stored_bytes > CARRIED_PAGE_BYTES_MAX else DAMAGED
        outcome.problem = PageProblem(
            kind, str(problem), header.stream, header.version, header.partition, header.seq
        )
        outcome.acked, outcome.landed = {}, []
        device.close()
        device.table = HighWaterTable()

    def _send(
        self, device: _KnownDevice, delivery: Delivery, header: Header, page: memoryview
    ) -> None:
        """Send a page on its route.  Raises PageError for one that cannot be read."""
        taken = self._stream(header.stream)
        if taken is None:
            return  # telemetry that nothing takes
        route = device.routes[header.epoch, header.stream, header.partition]
        if taken is self._rest:
            if len(page) > CARRIED_PAGE_BYTES_MAX:
                raise PageError(f"{header.name} is larger than a gateway forwards")
            batch = _carried(taken.schema, delivery, page)
        else:
            batch = self._decoded(taken, header, page)
        numbered = header.seq if header.stream != TELEMETRY else 0
        route.send(numbered, header.checksum, batch)

    def _decoded(self, taken: Taken, header: Header, page: memoryview) -> pa.RecordBatch:
        text = self._schema_of(header.stream, header.version)
        assert text is not None
        decoder = self._decoders.get(text)
        if decoder is None:
            decoder = self._decoders[text] = PageDecoder(Schema.from_json(text), taken.schema.names)
        decoder.add(page, header)
        return decoder.finish().cast(taken.schema.to_arrow())


def _carried(schema: Schema, delivery: Delivery, page: memoryview) -> pa.RecordBatch:
    """The row of a page that is forwarded."""
    arrow = schema.to_arrow()
    values = (
        time.time_ns() // 1000,
        delivery.device,
        f"{delivery.counter}:{delivery.nonce}",
        delivery.token,
        bytes(page),
    )
    arrays = [pa.array([v], f.type) for v, f in zip(values, arrow, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)
