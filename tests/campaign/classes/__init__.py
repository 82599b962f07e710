"""One module a kind of fault.  Importing this package registers all classes."""

from tests.campaign.classes import full, kills, machine, power, proxy, sectors, spark, syscalls

__all__ = ["full", "kills", "machine", "power", "proxy", "sectors", "spark", "syscalls"]
