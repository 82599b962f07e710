"""kill -9 of a collector within the steps of a seal, again and again.

    python -m tests.central.seal_kills --kills 30 --seed 7

Many devices fill a segment.  Its seal makes their records durable in steps, and acknowledgements go
on beside it.  The collector is killed at a random moment within the seal, sometimes again within
the seal that its next start goes on with.  Every acknowledged page must be there, and each page
once; at the end every full segment is sealed.  The figures are one JSON object.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

import httpx

from edged.central.landing import SEAL_DEVICES
from tests.central.support import SCHEMA, Collector, by_partition, make_page

DEVICES = 6 * SEAL_DEVICES
EPOCH = 5
PAGE_BYTES = len(make_page(1))


class Senders:
    """Devices that each send page after page, and every page until it is acknowledged."""

    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.acked = [0] * DEVICES

    def send(self, http, number):
        """The next page of a device, now and then with the one before it."""
        name, first = f"d{number}", self.acked[number] + 1
        first = max(1, first - self.dice.randrange(2))
        headers = {"X-Edged-Device": name, "X-Edged-Epoch": str(EPOCH), "X-Edged-Session": "1:1"}
        pages = (page(number, seq) for seq in range(first, self.acked[number] + 2))
        reply = http.post("/v1/pages", content=b"".join(pages), headers=headers)
        assert reply.status_code == 200, reply.text
        [[_, _, high]] = reply.json()["acked"]
        assert high == self.acked[number] + 1
        self.acked[number] = high

    def check(self, landing):
        """Compare the landing with what was acknowledged."""
        found = by_partition(landing)
        for number, last in enumerate(self.acked):
            pages = found.get((f"d{number}", "power", 0), {})
            assert sorted(pages) == list(range(1, len(pages) + 1)) and len(pages) in (
                last,
                last + 1,
            )
            assert all(pages[seq] == page(number, seq) for seq in pages)


def page(number, seq):
    """A page of a device."""
    return make_page(seq, device=f"d{number}", epoch=EPOCH)


def unsealed(landing):
    """Names of the full segments without a summary."""
    files = sorted(Path(landing, "segments").glob("*.pages"))
    full = [file for file in files if file.stat().st_size >= DEVICES * PAGE_BYTES]
    return [file.stem for file in full if not file.with_suffix(".sum").exists()]


def run(landing, kills, seed):
    """The campaign until `kills` kills were within a seal; its figures."""
    senders, dice = Senders(seed), random.Random(seed + 1)
    figures = {"kills": 0, "killed_in_a_seal": 0, "acks_beside_a_seal": 0}
    options = ("--segment-bytes", str(DEVICES * PAGE_BYTES))
    collector = Collector(landing, 0, *options)
    port, seal_s = collector.port, 0.1
    with httpx.Client(base_url=collector.url, timeout=120) as http:
        http.put("/v1/schemas/power/1", content=SCHEMA, headers={"X-Edged-Device": "d0"})
    while figures["killed_in_a_seal"] < kills:
        assert figures["kills"] < 20 * kills, "the kills miss the seals"
        with httpx.Client(base_url=collector.url, timeout=120) as http:
            order = []
            while not unsealed(landing):
                order = order or dice.sample(range(DEVICES), DEVICES)
                senders.send(http, order.pop())
            ends = time.monotonic() + dice.choice((0, dice.uniform(0, seal_s)))
            while unsealed(landing) and time.monotonic() < ends:
                senders.send(http, dice.randrange(DEVICES))
                figures["acks_beside_a_seal"] += 1
        for _ in range(dice.choice((1, 1, 2))):
            collector.kill()
            figures["kills"] += 1
            inside = bool(unsealed(landing))
            figures["killed_in_a_seal"] += inside
            seal_s = seal_s * 1.2 if inside else seal_s * 0.7
            senders.check(landing)
            collector = Collector(landing, port, *options)
    with httpx.Client(base_url=collector.url, timeout=120) as http:
        for number in range(DEVICES):
            senders.send(http, number)
    ends = time.monotonic() + 120
    while unsealed(landing):
        assert time.monotonic() < ends, "a segment stays without its summary"
        time.sleep(0.01)
    assert collector.stop() == 0
    senders.check(landing)
    return figures | {"pages": sum(senders.acked)}


def main():
    """Run the campaign and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        figures = {"seed": asked.seed, **run(Path(place, "landing"), asked.kills, asked.seed)}
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
