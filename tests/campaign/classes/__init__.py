"""One module a kind of fault.  Importing this package registers all classes."""

from tests.campaign.classes import (
    flips,
    full,
    kills,
    machine,
    mixed,
    power,
    proxy,
    sectors,
    spark,
    syscalls,
)

__all__ = [
    "flips", "full", "kills", "machine", "mixed", "power", "proxy", "sectors", "spark", "syscalls",
]  # fmt: skip
