"""Which board this is, and which release of its vendor's system it runs.

A Jetson is told by its module: `/proc/device-tree/compatible` lists carrier and module
(`nvidia,p3768-0000+p3767-0005`), the module (`nvidia,p3767-0005`) and the SoC
(`nvidia,tegra234`).  The module counts, since carriers of other makers change the model's name.
The release stands in `/etc/nv_tegra_release`: "# R36 (release), REVISION: 4.3, ...".

What is detected says which profile to read, nothing else: every path is discovered.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from governors.sysfs import Sysfs

COMPATIBLE = "/proc/device-tree/compatible"
MODEL = "/proc/device-tree/model"
RELEASE = "/etc/nv_tegra_release"
DMI = "/sys/class/dmi/id"

_MODULES = (
    ("p3767-0000", "orin-nx"),
    ("p3767-0001", "orin-nx"),
    ("p3767-", "orin-nano"),
    ("p3701-", "agx-orin"),
    ("p3668-", "xavier-nx"),
    ("p2888-", "agx-xavier"),
    ("p3448-", "jetson-nano"),
    ("p3450-", "jetson-nano"),
    ("jetson-nano", "jetson-nano"),
    ("p3310", "tx2"),
    ("p3834-", "thor"),
    ("raspberrypi,5", "raspberry-pi-5"),
)
"""Part of a compatible name -> board; the first that is found counts."""
_MODELS = (
    ("orin nano", "orin-nano"),
    ("orin nx", "orin-nx"),
    ("agx orin", "agx-orin"),
    ("xavier nx", "xavier-nx"),
    ("agx thor", "thor"),
    ("jetson nano", "jetson-nano"),
    ("raspberry pi 5", "raspberry-pi-5"),
)
_PROFILES = frozenset(("orin-nano", "orin-nx", "agx-orin", "jetson-nano", "raspberry-pi-5"))
_X86 = ("GenuineIntel", "AuthenticAMD", "HygonGenuine")


@dataclass(frozen=True, slots=True)
class DetectedBoard:
    """What was detected; empty texts are unknown."""

    name: str
    """orin-nano, agx-xavier, x86, ... or `unknown`."""
    model: str
    """As the board calls itself."""
    soc: str
    """tegra234, bcm2712, ..."""
    release: str
    """Of the vendor's system: R36.4.3."""
    profile_name: str | None
    """The profile that describes it, where there is one."""

    @property
    def tegra(self) -> bool:
        """Whether its GPU is a Tegra's, which NVML cannot set."""
        return self.soc.startswith("tegra")


def detect(sysfs: Sysfs) -> DetectedBoard:
    """Look at the tree.  A board that nothing is known of is `unknown`, with what it says."""
    model = sysfs.get(MODEL) or ""
    names = [name for name in (sysfs.get(COMPATIBLE) or "").split("\0") if name]
    soc = names[-1].split(",")[-1] if names else ""
    name = _find(_MODULES, " ".join(names)) or _find(_MODELS, model.lower())
    if name:
        profile = name if name in _PROFILES else None
        return DetectedBoard(name, model, soc, _release(sysfs.get(RELEASE) or ""), profile)
    if any(vendor in (sysfs.get("/proc/cpuinfo") or "") for vendor in _X86):
        says = (sysfs.get(f"{DMI}/{part}") or "" for part in ("sys_vendor", "product_name"))
        return DetectedBoard("x86", " ".join(says).strip(), "", "", "generic-x86")
    return DetectedBoard("unknown", model, soc, _release(sysfs.get(RELEASE) or ""), None)


def _find(table: tuple[tuple[str, str], ...], text: str) -> str:
    return next((name for part, name in table if part in text), "")


def _release(text: str) -> str:
    found = re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", text)
    return f"R{found[1]}.{found[2]}" if found else ""
