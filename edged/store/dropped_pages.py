"""The gaps that dropping waiting pages leaves: their extent in sequence numbers, rows and time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edged.errors import PageError
from edged.pages.format import Header, parse_header
from edged.pages.header import HEADER_BYTES
from edged.platform.disk import Disk, File
from edged.store.gaps import DROPPED, Gap
from edged.store.page_index import PendingPage, Route


def gaps_of(
    disk: Disk, pages: Iterable[PendingPage], jobs: Mapping[str, str], found_us: int
) -> list[Gap]:
    """A gap for each (stream, partition) of `pages`, which are dropped because the store is full.

    `jobs` has each stream's job.  Rows and times are None where a page's header is not readable.
    """
    routes: dict[Route, list[PendingPage]] = {}
    for page in pages:
        routes.setdefault((page.key.stream, page.key.partition), []).append(page)
    headers = _headers(disk, [page for of in routes.values() for page in of])
    return [
        _gap(route, of, [headers.get(id(page)) for page in of], jobs, found_us)
        for route, of in routes.items()
    ]


def _gap(
    route: Route,
    pages: list[PendingPage],
    headers: list[Header | None],
    jobs: Mapping[str, str],
    found_us: int,
) -> Gap:
    known = [header for header in headers if header is not None]
    whole = len(known) == len(headers)
    return Gap(
        DROPPED, route[0], pages[0].key.seq, pages[-1].key.seq, route[1],
        jobs.get(route[0], ""), "",
        min((h.time_min_us for h in known), default=None),
        max((h.time_max_us for h in known), default=None),
        sum(h.tuples for h in known) if whole else None,
        found_us, "the store was full",
    )  # fmt: skip


def _headers(disk: Disk, pages: list[PendingPage]) -> dict[int, Header]:
    """The valid headers of pages, by `id` of the page."""
    files: dict[str, File] = {}
    found: dict[int, Header] = {}
    try:
        for page in pages:
            path = page.holder.path
            if path not in files:
                files[path] = disk.open(path)
            try:
                found[id(page)] = parse_header(files[path].pread(HEADER_BYTES, page.offset))
            except PageError:
                continue
    finally:
        for file in files.values():
            file.close()
    return found
