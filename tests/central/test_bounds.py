"""What the collector takes is bounded: schemas in columns, depth, names and bytes; requests in
pages."""

from __future__ import annotations

import json
import time

import httpx
import pytest

from edged.central import page_request as routes
from edged.central.schemas import DETAIL_MAX, SCHEMA_BYTES_MAX, SchemaRegistry
from edged.errors import CentralError
from edged.pages.format import COLUMN_NAME_BYTES_MAX, PAGE_COLUMNS_MAX
from tests.central.support import DEVICE, EPOCH, collecting, make_page


def schema(*names):
    return json.dumps([{"name": name, "type": "int8"} for name in names])


WRONG = {
    "columns": schema(*(f"c{i}" for i in range(PAGE_COLUMNS_MAX + 1))),
    "a name's bytes": schema("ä" * (COLUMN_NAME_BYTES_MAX // 2 + 1)),
    "half a character": schema("\ud800"),
    "depth": "[" * 500_000,
    "depth of objects": '[{"name":' * 100_000,
    "bytes": schema("x" * SCHEMA_BYTES_MAX),
    "a number": '[{"name":"a","type":' + "9" * 900_000 + "}]",
    "a long value": '[{"name":"a","type":"' + "x" * 900_000 + '"}]',
}


@pytest.mark.parametrize("name", WRONG)
def test_a_schema_beyond_its_bound_is_refused_soon_and_in_few_words(tmp_path, name):
    registry = SchemaRegistry(tmp_path)
    began = time.process_time()
    with pytest.raises(CentralError) as refused:
        registry.register("s", 1, WRONG[name])
    assert time.process_time() - began < 2
    assert len(str(refused.value)) < DETAIL_MAX + 100
    assert not registry.registered("s", 1)


def test_a_schema_at_its_bound_is_registered(tmp_path):
    name = "x" * (COLUMN_NAME_BYTES_MAX - 4)
    text = schema(*(f"{name[: 180 if i else None]}{i:04}" for i in range(PAGE_COLUMNS_MAX)))
    registry = SchemaRegistry(tmp_path)
    registry.register("s", 1, text)
    assert json.loads(registry.get("s", 1))[-1]["name"].endswith("4095")


def test_a_schema_that_was_registered_without_a_bound_stays(tmp_path, monkeypatch):
    """By an earlier version; the device registers it again at each start."""
    registry = SchemaRegistry(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("edged.central.schemas.PAGE_COLUMNS_MAX", 1 << 20)
        registry.register("s", 1, WRONG["columns"])
    again = SchemaRegistry(tmp_path)
    again.register("s", 1, WRONG["columns"])
    assert again.registered("s", 1)


def test_the_pages_of_a_request_are_bounded(monkeypatch):
    monkeypatch.setattr(routes, "PAGES_MAX", 3)
    sender = routes.DeviceSession(DEVICE, EPOCH, 1, 1)
    pages = [make_page(seq) for seq in (1, 2, 3, 4)]
    assert len(routes.check(sender, b"".join(pages[:3])).pages) == 3
    with pytest.raises(routes.RequestRefused, match="at most 3 pages") as refused:
        routes.check(sender, b"".join(pages))
    assert refused.value.status == 413


def test_a_request_with_pages_beyond_the_bound_is_answered_over_http(tmp_path):
    with collecting(tmp_path / "landing") as collector:
        headers = {
            "X-Edged-Device": DEVICE, "X-Edged-Epoch": str(EPOCH), "X-Edged-Session": "1:1",
        }  # fmt: skip
        body = make_page(1) * (routes.PAGES_MAX + 1)
        reply = httpx.post(f"{collector.url}/v1/pages", content=body, headers=headers, timeout=120)
        assert reply.status_code == 413 and "pages" in reply.json()["detail"]
        put = f"{collector.url}/v1/schemas/deep/1"
        reply = httpx.put(put, content=WRONG["depth"], headers=headers, timeout=120)
        assert reply.status_code == 422
