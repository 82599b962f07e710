"""One module a kind of fault.  Importing this package registers all classes, in this order."""

from tests.campaign.classes import kills, machine, power, proxy, sectors, spark, syscalls

__all__ = ["kills", "machine", "power", "proxy", "sectors", "spark", "syscalls"]
