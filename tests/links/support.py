"""Messages of links, decoded by pyarrow, and plans of links."""

from __future__ import annotations

import pyarrow as pa

from edged.client.frames import END_OF_STREAM, SEQ_KEY, SUM_KEY, WATERMARK_KEY
from edged.data.flow import Link
from edged.links.page import LINK_HEADER_BYTES, unpack_header
from edged.links.template import greeting_of
from edged.sinks.edge import EdgePlan

TO = ["127.0.0.1:9100", "127.0.0.1:9101", "127.0.0.1:9102"]


def decoded(schema, page):
    """(number, watermark, sum, batch) of each message of a page."""
    data = greeting_of(schema, {}) + bytes(page[LINK_HEADER_BYTES:]) + END_OF_STREAM
    found = []
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        while True:
            try:
                read = reader.read_next_batch_with_custom_metadata()
            except StopIteration:
                return found
            read.batch.validate(full=True)
            told = dict(read.custom_metadata)
            seq, watermark = int(told[SEQ_KEY]), int(told[WATERMARK_KEY])
            found.append((seq, watermark, int(told[SUM_KEY], 16), read.batch))


def header(page, link="link:job/out"):
    """The header of a page."""
    return unpack_header(link, bytes(page))


def plan(schema, instances=3, **document):
    """The plan of a link to so many instances."""
    given = {"to": TO[:instances], **document}
    return EdgePlan.parse("sinks.out", "out", given, Link(schema, "time")).in_job("job")
