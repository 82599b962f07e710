"""A gateway takes devices' pages: it decodes them into a job, or sends them on to the centre."""

import contextlib
import socket
import time
from pathlib import Path
from typing import NamedTuple

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edged.central.cli_desired import change_documents
from edged.central.gateway import GatewayTokens
from edged.central.tokens import token_line
from edged.control.door import ask
from edged.job.plan import faults
from edged.pages.container import Label, contents, pack
from tests import whole
from tests.beat.support import ARROW, stream
from tests.central.support import (
    DEVICE,
    EPOCH,
    SCHEMA,
    Collector,
    Device,
    by_partition,
    collecting,
    make_page,
)
from tests.links.chain import rows
from tests.links.pages import Part, decode_job, device_job, forward_job
from tests.uplink.support import Daemon as Sending
from tests.uplink.support import Spool

TOKEN = "the-device's"


def until(condition, seconds=120.0):
    """Wait until `condition()` holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def landed(landing, device):
    """Pages of a device at the centre, by stream and partition."""
    return {key[1:]: pages for key, pages in by_partition(landing).items() if key[0] == device}


def check_same(landing, spool):
    """The centre has exactly the pages of the device, each once, in order."""
    found = landed(landing, DEVICE)
    assert all(list(pages) == sorted(pages) for pages in found.values())
    assert spool.sent == {
        (*place, seq): page for place, pages in found.items() for seq, page in pages.items()
    }


@contextlib.contextmanager
def sending(url, path, name, **options):
    """The uplink process of a device, and its pages in a file."""
    spool = Spool(path / f"spool-{name}")
    with contextlib.closing(spool), Sending(url, **options) as device:
        yield device, spool


def test_a_container_keeps_pages_as_they_are_and_names_them():
    pages = [make_page(seq, partition=seq % 2, rows=seq) for seq in (1, 2, 3)]
    label = Label("gate", 7, "via:job/out", 9, 4, 1, 1_000)
    made = pack(label, DEVICE, (3, 2**64 - 1), "a token", pages)
    found = contents("via:job/out", 9, 4, made)
    assert (found.device, found.epoch, found.session) == (DEVICE, EPOCH, (3, 2**64 - 1))
    assert found.token == "a token"
    assert [made[p.at : p.at + p.length] for p in found.pages] == pages
    assert [(p.partition, p.seq, p.rows) for p in found.pages] == [(1, 1, 1), (0, 2, 2), (1, 3, 3)]
    with pytest.raises(ValueError, match="another page"):
        contents("via:job/out", 9, 5, made)
    with pytest.raises(ValueError, match="damaged"):
        contents("via:job/out", 9, 4, made.replace(b"a token", b"A token", 1))


@pytest.mark.parametrize(
    ("section", "name", "changes", "path"),
    [
        ("streams", "pages", {"late": "drop"}, "streams.pages.late"),
        ("streams", "pages", {"columns": {"at": "timestamp"}}, "streams.pages.columns"),
        ("sinks", "centre", {"input": "other"}, "sinks.centre.input"),
    ],
)
def test_a_job_that_could_not_forward_pages_whole_is_refused_with_the_path(
    section, name, changes, path
):
    job = forward_job(listen="127.0.0.1:7500")
    job["streams"]["other"] = stream()
    job[section][name] |= changes
    assert path in [fault.path for fault in faults(job)]


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ({"listen": "0.0.0.0:7500"}, "listen"),
        ({"listen": "here"}, "listen"),
        ({"stream": "rows"}, "stream"),
        ({"tls_cert": "cert.pem"}, "tls_cert"),
    ],
)
def test_a_gateways_table_that_is_wrong_is_refused_with_the_path(source, path):
    job = forward_job(**{"listen": "127.0.0.1:7500", **source})
    assert [fault.path for fault in faults(job)] == [f"streams.pages.source.{path}"]


def test_a_device_is_at_the_centre_what_it_is_without_its_gateway(tmp_path):
    landing, config = tmp_path / "landing", tmp_path / "often.toml"
    config.write_text("[telemetry]\ninterval_s = 1\n")
    with (
        collecting(landing) as centre,
        Part(tmp_path, "gate", forward_job(), "--uplink", centre.url) as gate,
        Part(
            tmp_path, "dev-a", device_job(), "--uplink", gate.url, "--config", str(config)
        ) as device,
    ):
        with device.producer() as sensor:
            for first in range(0, 2000, 100):
                sensor.send(pa.record_batch(rows(range(first, first + 100)), schema=ARROW))
        until(lambda: sum(map(len, landed(landing, "dev-a").values())) >= 5)
        until(lambda: ("edged.telemetry", 0) in landed(landing, "dev-a"))
        until(lambda: device.status()["uplink"]["backlog_pages"] == 0)
        until(lambda: gate.status()["store"]["backlog_pages"] == 0)
        wanted = {"windows": []}
        change_documents(landing, ["dev-a"], lambda _: {"dev-a": wanted})
        with device.producer(id="second") as sensor:
            sensor.send(pa.record_batch(rows(range(2000, 2100)), schema=ARROW))
        until(lambda: (device.status()["uplink"]["desired"] or {}).get("applied") == 1)
        until(lambda: device.status()["uplink"]["backlog_pages"] == 0)
        until(lambda: gate.status()["store"]["backlog_pages"] == 0)
        [state] = gate.status()["jobs"]["onward"]["sinks"]["centre"]["links"]
        assert (state["to"], state["state"]) == ("dev-a", "connected")
    found = landed(landing, "dev-a")
    sums = [page for key, pages in found.items() if key[0] == "rows" for page in pages]
    assert len(sums) == state["pages"]
    assert {key[0] for key in by_partition(landing)} == {"gate", "dev-a"}


@pytest.mark.parametrize("kills", [whole.count(2, 60)])
def test_kills_of_gateway_and_centre_lose_nothing_and_nothing_comes_twice(tmp_path, kills):
    landing = tmp_path / "landing"
    centre = Collector(landing)
    gate = Part(tmp_path, "gate", forward_job(), "--uplink", centre.url)
    gate.ready(300)
    spool = Spool(tmp_path / "spool")
    with Sending(gate.url) as device:
        device.offer(spool.add(range(1, 11), (0, 1, 2)))
        device.drain()
        for n in range(kills):
            first = 11 + 10 * n
            device.offer(spool.add(range(first, first + 10), (0, 1, 2)))
            device.poll(0.02 * (n % 5))
            if n % 2:
                port = centre.port
                centre.kill()
                centre = Collector(landing, port)
            else:
                gate.kill()
                gate.restart()
                gate.ready(300)
            device.uplink.retry()
        device.drain()
        until(lambda: gate.status()["store"]["backlog_pages"] == 0)
    gate.stop()
    centre.stop()
    spool.close()
    check_same(landing, spool)


class Site(NamedTuple):
    """A gateway without a tokens file, and a centre with one."""

    gate: Part
    landing: Path
    tokens: Path


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    path = tmp_path_factory.mktemp("site")
    landing, tokens = path / "landing", path / "tokens"
    tokens.write_text(token_line(DEVICE, TOKEN) + "\n")
    with (
        collecting(landing, "--tokens", str(tokens)) as centre,
        Part(path, "gate", forward_job(), "--uplink", centre.url) as gate,
    ):
        yield Site(gate, landing, tokens)


def test_a_gateway_with_a_tokens_file_admits_its_devices_alone(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(token_line(DEVICE, TOKEN) + "\n")
    known = GatewayTokens(str(tokens), tmp_path)
    assert known.allows(DEVICE, TOKEN)
    assert not known.allows(DEVICE, "another")
    assert not known.allows("other", TOKEN)


def test_what_a_gateway_refuses(site):
    landing = site.landing
    with (
        Device(site.gate, token=TOKEN, session=(2, 5)) as device,
        Device(site.gate, token=TOKEN, session=(1, 4)) as older,
    ):
        answer = device.send(make_page(1))
        assert (answer.status_code, answer.json()["problem"]) == (409, "unknown_schema")
        assert device.register().status_code == 204
        damaged = bytearray(make_page(2))
        damaged[-1] ^= 1
        answer = device.send(make_page(1), bytes(damaged))
        assert (answer.status_code, answer.json()["problem"]) == (422, "damaged")
        assert answer.json()["acked"] == [["power", 0, 1]]
        assert older.send(make_page(2)).json()["problem"] == "fenced"
        assert device.send(make_page(1, salt=1)).json()["problem"] == "conflict"
        assert device.send(make_page(1), make_page(2)).json()["acked"] == [["power", 0, 2]]
        until(lambda: landed(landing, DEVICE).get(("power", 0), {}).keys() == {1, 2})


def test_a_token_that_the_centre_refuses_is_refused_to_the_device_until_it_is_right(site):
    page = make_page(1, device="other")
    with Device(site.gate, name="other", token=TOKEN) as device:
        assert device.register().status_code == 204
        assert device.send(page).status_code == 200
        until(lambda: device.send(page).status_code == 401)
        with site.tokens.open("a") as file:
            file.write(token_line("other", TOKEN) + "\n")
        ask(site.gate.door, "uplink.retry")
        until(lambda: ("power", 0) in landed(site.landing, "other"))
        until(lambda: device.send(page).status_code == 200)


def test_a_gateway_whose_store_is_full_refuses_with_a_pause_and_goes_on(tmp_path):
    landing = tmp_path / "landing"
    with collecting(landing) as centre:
        port = centre.port
    arguments = ("--uplink", f"http://127.0.0.1:{port}", "--store-max", str(8 << 20))
    with (
        Part(tmp_path, "gate", forward_job("2MiB"), *arguments) as gate,
        sending(gate.url, tmp_path, "full") as (device, spool),
    ):
        device.offer(spool.add(range(1, 901), rows=900))
        device.until(lambda: device.uplink.status()["last_error"])
        assert "not made these pages durable" in device.uplink.status()["last_error"]
        assert device.pending
        with collecting(landing, port=port):
            device.uplink.retry()
            device.drain()
            until(lambda: gate.status()["store"]["backlog_pages"] == 0)
        check_same(landing, spool)


def test_a_killed_daemon_gets_its_port_back_from_the_process_that_it_left_behind(tmp_path):
    gate = Part(tmp_path, "gate", decode_job(tmp_path / "out"))
    gate.ready(300)
    gate.kill()
    until(lambda: free(gate.port))
    assert (tmp_path / "gate" / "store" / f"pages-{gate.port}").exists()
    with socket.create_server(("127.0.0.1", gate.port)) as held:
        gate.restart()
        time.sleep(1.0)
        gate.check()
        held.close()
        gate.ready(300)
    gate.stop()


def free(port):
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
        return True
    return False


def test_pages_become_rows_of_a_job_once_each_over_kills(tmp_path):
    out = tmp_path / "out"
    gate = Part(tmp_path, "gate", decode_job(out))
    gate.ready(300)
    with Part(tmp_path, "dev-a", device_job(), "--uplink", gate.url) as device:
        with device.producer() as sensor:
            for n in range(6):
                first = 1000 * n
                sensor.send(pa.record_batch(rows(range(first, first + 1000)), schema=ARROW))
                time.sleep(0.05)
                if n in whole.count((2,), (1, 2, 4)):
                    gate.kill()
                    gate.restart()
                    gate.ready(300)
        device.until(lambda s: s["uplink"]["backlog_pages"] == 0)
        until(lambda: len(values(out)) >= 6000)
        assert sorted(values(out)) == list(range(6000))
        other = httpx.put(
            f"{gate.url}/v1/schemas/rows/2", content=SCHEMA, headers={"X-Edged-Device": "x"}
        )
        assert (other.status_code, other.json()["problem"]) == (409, "schema")
    gate.stop()


def values(out):
    return [v for f in sorted(out.glob("*.parquet")) for v in pq.read_table(f)["value"].to_pylist()]
