"""What the kernels that make texts compute, said plainly: over Python strings, None for null."""

from __future__ import annotations

import hashlib


def join(separator, *parts):
    """The parts that are not null, with the separator between them."""
    return separator.join(p for p in parts if p is not None)


def pad(left, text, count, fill):
    """lpad and rpad; None where there is nothing to pad with."""
    if count <= len(text):
        return text[: max(count, 0)]
    if not fill:
        return None
    padding = (fill * count)[: count - len(text)]
    return padding + text if left else text + padding


def replace(text, old, new):
    """Every `old` replaced; an empty one is nowhere."""
    return text.replace(old, new) if old else text


def recode(text, mapping):
    """Code points mapped one by one."""
    return "".join(chr(mapping.get(ord(c), ord(c))) for c in text)


def reverse(text, joiners):
    """The code points backwards; None where one of `joiners` stands in a text that is not ASCII."""
    if not text.isascii() and any(ord(c) in joiners for c in text):
        return None
    return text[::-1]


def md5(text):
    """Hexadecimal digest."""
    return hashlib.md5(text.encode()).hexdigest()


def sha256(text):
    """Hexadecimal digest."""
    return hashlib.sha256(text.encode()).hexdigest()
