"""Links between daemons that run: every row arrives once and in order, whatever is killed."""

from __future__ import annotations

from pathlib import Path

from edged.platform.processes import free_port
from tests.beat.loop import batch
from tests.links.chain import Hop, Last, hop_job, last_job, rows

PEM = str(Path("tests/sources/loopback_tls.pem").absolute())


def send(producer, first, count, at_once=50):
    """Rows with the values from `first` on, in batches."""
    for start in range(first, first + count, at_once):
        producer.send(rows(range(start, start + at_once)))


def test_rows_arrive_once_and_in_order_when_both_ends_are_killed(tmp_path):
    token = tmp_path / "token"
    token.write_text("open sesame\n")
    guarded, own = last_job(), {"token_file": str(token)}
    guarded["streams"]["r"]["source"] |= {"tls_cert": PEM, "tls_key": PEM, **own}
    last = Last(tmp_path / "last", guarded)
    hop = Hop(tmp_path / "hop", hop_job([last.address], buffer="1KiB", ca=PEM, **own))
    with last, hop, hop.producer() as producer:
        done = 0
        for end in (None, last, hop, last):
            send(producer, done, 1000)
            if end is not None:
                end.kill()
                send(producer, done + 1000, 500)
                end.restart()
                end.ready(120)
                done += 500
            done += 1000
        producer.flush()
        hop.until(lambda s: s["store"]["backlog_pages"] == 0)
        last.until(lambda _: len(last.values()) >= done)
        assert last.values() == list(range(done))
        (link,) = hop.links()
        assert link["state"] == "connected" and link["in_flight_bytes"] == 0


def test_a_dead_address_and_another_schema_leave_the_other_link_alone(tmp_path):
    other = last_job()
    other["streams"]["r"]["columns"]["key"] = "string"
    with Last(tmp_path / "good") as good, Last(tmp_path / "bad", other) as bad:
        to = [good.address, bad.address, f"127.0.0.1:{free_port()}"]
        with Hop(tmp_path / "hop", hop_job(to, partition="broadcast")) as hop, hop.producer() as p:
            p.send(batch(range(100)))
            p.flush()
            good.until(lambda _: len(good.values()) == 100)
            hop.until(lambda _: [link["state"] for link in hop.links()] == [
                "connected", "refused", "backing_off"])  # fmt: skip
            fine, refused, away = hop.links()
            assert fine["problem"] == "" and fine["rows"] == 100
            assert "key" in refused["problem"] and "Connection refused" in away["problem"]
