"""The typed client of the REST API.

    with Client() as edged:                                    # /run/edged/api.sock
        print(edged.device()["rows"])
        edged.pause_job("power_curve")
        for message in edged.live():
            ...

    Client("https://turbine-7:7443", token, ca="ca.pem")       # over TCP

`_methods` is generated from docs/openapi.json: a method for each operation.  Answers are plain
dictionaries, typed by the TypedDicts of `edged.rest.answers`, which the API serves; importing the
client imports neither them nor pydantic.  A refusal raises ApiError with the problem's kind, its
faults and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from edged.rest import _methods
from edged.rest.transport import DEFAULT, ApiError, LiveMessage


class Client(_methods.Methods):
    """A connection to the API; see `Transport` for the arguments."""

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def all_of(page: Callable[..., Any], **arguments: Any) -> Iterator[Any]:
    """Every item of a paged list: `all_of(client.jobs)`."""
    cursor = None
    while True:
        answer = page(cursor=cursor, **arguments)
        yield from answer["items"]
        cursor = answer["next"]
        if cursor is None:
            return


__all__ = ["DEFAULT", "ApiError", "Client", "LiveMessage", "all_of"]
