"""Which authorities a TLS client trusts."""

from __future__ import annotations

import ssl


def trusting(ca: str | None) -> ssl.SSLContext:
    """The TLS settings of a client that trusts the system's certificates, or those in the PEM file
    `ca`.  Raises OSError where the file has none.

    From Python 3.13 on a context demands of an authority what RFC 5280 says, e.g. its key usage
    (`VERIFY_X509_STRICT`); before, and in curl, it does not.  A fleet's own authority would be
    refused after an upgrade of the system, and its devices would fall silent.  So an authority that
    a user names is checked as before: signatures, names and dates.
    """
    context = ssl.create_default_context(cafile=ca)
    if ca is not None:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
