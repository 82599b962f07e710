"""Removes from texts what names a machine, its owner or its network.

    hidden = Identifiers.of(sysfs)
    hidden.clean("Acme Gate 4 SN-0423187")          "Acme Gate 4 [removed]"

Two fences.  The first knows this machine's own identifiers: host name, serial numbers, asset tags
and UUIDs of device tree and DMI, the machine's id, MAC addresses, names of users.  Each is removed
wherever it stands, letter case ignored; one of fewer than ANYWHERE characters only as a whole word,
since `pi` is a user's name and a part of many words.  Words that name no machine (PUBLIC, such as
the host name `raspberrypi` of every new image) stay.  The second removes what has the form of a MAC
address, a UUID, an IP address, an address of mail or a long number, wherever it comes from.

Limits: a user's name that is written in an unusual way is not found.  A report therefore holds
fields from a list only (`governors.board_report`), none of which is meant for names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from governors.sysfs import Sysfs

REMOVED = "[removed]"
ANYWHERE = 6
"""Characters from which on an identifier is removed inside of words too."""
SHORTEST = 2
PUBLIC = frozenset((
    "arm64", "board", "cpu", "debian", "default", "edged", "gpu", "jetson", "linux", "localhost",
    "nano", "none", "nvidia", "orin", "pi", "raspberry", "raspberrypi", "root", "rpi", "soc",
    "tegra", "thor", "tx2", "ubuntu", "unknown", "xavier", "x86",
))  # fmt: skip
LENGTH_MAX = 96
"""Of a cleaned text."""
_FILES = (
    "/etc/hostname", "/proc/sys/kernel/hostname", "/proc/sys/kernel/domainname",
    "/etc/machine-id", "/proc/device-tree/serial-number", "/proc/device-tree/chosen/uuid",
    "/sys/devices/soc0/serial_number", "/proc/sys/kernel/random/boot_id",
)  # fmt: skip
_GLOBS = (
    "/sys/class/dmi/id/*_serial", "/sys/class/dmi/id/*_uuid", "/sys/class/dmi/id/*_asset_tag",
    "/sys/class/net/*/address", "/sys/class/power_supply/*/serial_number",
    "/sys/block/*/device/serial", "/sys/block/*/device/cid",
)  # fmt: skip
_SERIAL_LINE = re.compile(r"^Serial\s*:\s*(\S+)", re.M)
_FORMS = re.compile(
    r"(?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2}"
    r"|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
    r"|(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"
    r"|[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){3,7}"
    r"|[\w.+-]+@[\w-]+\.[\w.]+"
    r"|(?<![0-9a-z])(?=[0-9a-f]*\d)[0-9a-f]{12,}",
    re.I,
)
FIRST_USER = 1000
"""Number of the first user that is a person; services have lower ones."""
LAST_USER = 60_000


@dataclass(frozen=True)
class Identifiers:
    """What names one machine."""

    values: tuple[str, ...]
    """Longest first."""

    @classmethod
    def of(cls, sysfs: Sysfs, more: Iterable[str] = ()) -> Identifiers:
        """Those of a tree, and `more`.  Files that this process may not read have none: their
        content cannot be in a text either."""
        found = {value.strip() for value in (*_of_tree(sysfs), *more)}
        kept = (v for v in found if len(v) >= SHORTEST and v.lower() not in PUBLIC)
        return cls(tuple(sorted(kept, key=lambda v: (-len(v), v))))

    def clean(self, text: str) -> str:
        """The text without identifiers, printable, at most LENGTH_MAX characters long."""
        text = "".join(c if c.isprintable() else " " for c in text)
        for value in self.values:
            inside = re.escape(value)
            whole = len(value) < ANYWHERE
            pattern = rf"(?<![0-9A-Za-z]){inside}(?![0-9A-Za-z])" if whole else inside
            text = re.sub(pattern, REMOVED, text, flags=re.I)
        return _FORMS.sub(REMOVED, text)[:LENGTH_MAX].strip()


def _of_tree(sysfs: Sysfs) -> Iterator[str]:
    paths = [*_FILES, *(path for pattern in _GLOBS for path in sysfs.glob(pattern))]
    for path in paths:
        text = sysfs.get(path) or ""
        yield text
        if "hostname" in path:
            yield text.partition(".")[0]
    yield from _SERIAL_LINE.findall(sysfs.get("/proc/cpuinfo") or "")
    for line in (sysfs.get("/etc/passwd") or "").splitlines():
        name, *rest = line.split(":")
        if len(rest) > 3 and rest[1].isdecimal() and FIRST_USER <= int(rest[1]) < LAST_USER:
            yield name
            yield from (part for part in rest[3].split(",") if part)
