"""Executes the sender's tasks on a lane."""

from __future__ import annotations

from urllib.parse import quote

from edged.uplink.client import CollectorClient
from edged.uplink.pages import PageReader, WrongPage
from edged.uplink.tasks import (
    LOST_HEADER,
    NoReply,
    RegisterSchema,
    Result,
    SendPages,
    Task,
    Unreadable,
)


def lost_header(task: Task) -> dict[str, str]:
    """The header that declares lost pages: `<partition> <first> <last> <quoted stream>`."""
    if not isinstance(task, SendPages) or task.lost is None:
        return {}
    stream, partition, first, last = task.lost
    return {LOST_HEADER: f"{partition} {first} {last} {quote(stream, safe='')}"}


def execute(task: Task, client: CollectorClient, reader: PageReader) -> Result:
    """The result of a task, whose headers the client has.  Never raises."""
    try:
        if isinstance(task, RegisterSchema):
            return client.put_schema(task.stream, task.version, task.text)
        try:
            pages = reader.read(task.places)
        except WrongPage as problem:
            return Unreadable(problem.place, problem.detail)
        return client.post_pages(pages, task.report)
    except Exception as problem:
        return NoReply(f"{type(problem).__name__}: {problem}")
