"""Bad links: between producers and daemon, and between uplink and collector."""

from __future__ import annotations

import time
from pathlib import Path

from tests.campaign.links import MODES, Link
from tests.campaign.registry import Run, fault_class
from tests.campaign.rig import Rig

PEM = Path("tests/sources/loopback_tls.pem").absolute()
"""Arrow's stream has no checksum: TLS notices bytes that a link changes.  Pages have their own."""
FAULTS = 3
"""Faults of a seed, one after the other."""


@fault_class("proxy", runs=30)
def proxy(run: Run) -> None:
    """One run is one seed: faults on one link or on both, then a new id must pass."""
    with Rig(run.directory, outcome=run.outcome, tls_cert=str(PEM), tls_key=str(PEM)) as rig:
        links = [Link(rig.address, run.seed), Link(rig.centre, run.seed + 1)]
        rig.feed_address, rig.uplink_address = (link.address for link in links)
        rig.start(tls=str(PEM))
        for number in range(run.runs):
            for fault in range(FAULTS):
                for side, link in enumerate(links):
                    if run.dice.random() < 0.7:
                        link.mode = MODES[(number * FAULTS + fault + 3 * side) % len(MODES)]
                time.sleep(run.dice.uniform(0.2, 1.2))
                for link in links:
                    link.mode = None
            rig.new_id(f"seed {number}")
            run.counted()
        rig.settle()
        for link in links:
            link.close()
