"""However often and however many scrape, the daemon is asked once a second at most."""

import asyncio
import json
import time

import httpx
import pytest

from api import metrics
from api.door_client import DoorClient
from api.problems import ApiProblem


class Daemon:
    """A door that counts its clients, and can stay silent."""

    def __init__(self, path):
        self.path, self.asked, self.speaks = path, 0, asyncio.Event()
        self.speaks.set()

    async def __aenter__(self):
        self.server = await asyncio.start_unix_server(self.answer, self.path)
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def answer(self, reader, writer):
        await reader.readline()
        self.asked += 1
        await self.speaks.wait()
        writer.write(json.dumps({"error": "there is nothing", "kind": "failed"}).encode() + b"\n")
        await writer.drain()
        writer.close()


def client(door):
    transport = httpx.ASGITransport(metrics.App(door))
    return httpx.AsyncClient(transport=transport, base_url="http://device", timeout=30)


def test_hundreds_of_scrapes_a_second_are_one_question_a_second(tmp_path):
    async def scrape():
        async with (
            Daemon(tmp_path / "door") as daemon,
            client(DoorClient(str(daemon.path))) as http,
        ):
            begun, scrapes = time.monotonic(), 0
            while daemon.asked < 3:
                for answer in await asyncio.gather(*[http.get("/metrics") for _ in range(50)]):
                    assert answer.status_code == 200 and "edged_up 0.0" in answer.text
                scrapes += 50
            return time.monotonic() - begun, scrapes

    seconds, scrapes = asyncio.run(scrape())
    assert seconds >= 2.0, "three questions are two seconds apart"
    assert scrapes > 100


def test_a_daemon_that_hangs_is_down_before_the_scraper_gives_up(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "PATIENCE_S", 0.1)

    async def scrape():
        door = DoorClient(str(tmp_path / "door"))
        async with Daemon(tmp_path / "door") as daemon, client(door) as http:
            daemon.speaks.clear()
            answers = await asyncio.gather(*[http.get("/metrics") for _ in range(5)])
            daemon.speaks.set()
            with pytest.raises(ApiProblem):
                await door.snapshot()
            return daemon.asked, {answer.text for answer in answers}

    asked, texts = asyncio.run(scrape())
    assert asked == 1
    (text,) = texts
    assert text.endswith("edged_up 0.0\n") and text.count("edged_up ") == 3


def test_without_metrics_listen_there_is_no_listener_and_a_taken_port_ends_nothing(caplog):
    assert metrics.open_listener("") is None
    listener = metrics.open_listener("127.0.0.1:0")
    try:
        assert metrics.open_listener(listener.address) is None
        assert "set metrics.listen" in caplog.text
    finally:
        listener.sock.close()


@pytest.mark.parametrize("path", ["/", "/metrics/", "/v1/jobs"])
def test_there_is_nothing_but_metrics(tmp_path, path):
    async def get():
        async with client(DoorClient(str(tmp_path / "door"))) as http:
            return (await http.get(path)).status_code

    assert asyncio.run(get()) == 404
