"""One module a kind of fault.  Importing this package registers all classes, in this order."""

from tests.campaign.classes import kills

__all__ = ["kills"]
