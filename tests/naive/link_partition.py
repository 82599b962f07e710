"""Which instance each row of a link goes to, said plainly."""

from __future__ import annotations

from tests.naive.link_messages import K, M, fmix64

SALT = 0xD6E8FEB86659FD93


def by_hash(hashes, instances):
    """By the hash of its key."""
    return [(fmix64(h ^ SALT) >> 32) * instances >> 32 for h in hashes]


def at_random(first, rows, instances):
    """By its number."""
    return by_hash([(first + i) * K & M for i in range(rows)], instances)


def round_robin(first, rows, instances):
    """In turn."""
    return [(first + i) % instances for i in range(rows)]


def group(of, instances):
    """The rows of each instance, and how many go to none."""
    found = [[i for i, k in enumerate(of) if k == instance] for instance in range(instances)]
    return found, len(of) - sum(map(len, found))
