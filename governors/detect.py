"""Detects the board and its vendor's release.

A Jetson is identified by its module.  `/proc/device-tree/compatible` lists carrier and module
(`nvidia,p3768-0000+p3767-0005`), the module alone (`nvidia,p3767-0005`) and the SoC
(`nvidia,tegra234`). The model name is a fallback only, since other makers' carriers change it.  The
release is in `/etc/nv_tegra_release`: "# R36 (release), REVISION: 4.3, ...".

The result selects the profile and nothing else: actuators and meters discover every path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from governors import profile_reader
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
"""Substring of a compatible name, board.  The first match wins."""
_MODELS = (
    ("orin nano", "orin-nano"),
    ("orin nx", "orin-nx"),
    ("agx orin", "agx-orin"),
    ("xavier nx", "xavier-nx"),
    ("agx thor", "thor"),
    ("jetson nano", "jetson-nano"),
    ("raspberry pi 5", "raspberry-pi-5"),
)
X86 = "x86"
_X86 = ("GenuineIntel", "AuthenticAMD", "HygonGenuine")


@dataclass(frozen=True, slots=True)
class DetectedBoard:
    """A detected board; an empty text means unknown."""

    name: str
    """orin-nano, agx-xavier, x86, ... or `unknown`."""
    model: str
    """The board's own model name."""
    soc: str
    """tegra234, bcm2712, ..."""
    release: str
    """Release of the vendor's system: R36.4.3."""
    profile_name: str | None
    """Name of its profile, None where there is none."""

    @property
    def tegra(self) -> bool:
        """Whether the GPU is a Tegra's, which NVML cannot control."""
        return self.soc.startswith("tegra")


def boards() -> tuple[str, ...]:
    """Names of all boards that are detected."""
    return tuple(dict.fromkeys([*(name for _, name in (*_MODULES, *_MODELS)), X86]))


def detect(sysfs: Sysfs) -> DetectedBoard:
    """The board of a tree.  A board that matches nothing has the name `unknown` and its own model
    name."""
    model = sysfs.get(MODEL) or ""
    names = [name for name in (sysfs.get(COMPATIBLE) or "").split("\0") if name]
    soc = names[-1].split(",")[-1] if names else ""
    name = _find(_MODULES, " ".join(names)) or _find(_MODELS, model.lower())
    if name:
        profile = name if name in profile_reader.names() else None
        return DetectedBoard(name, model, soc, _release(sysfs.get(RELEASE) or ""), profile)
    if any(vendor in (sysfs.get("/proc/cpuinfo") or "") for vendor in _X86):
        maker, product = (
            sysfs.get(f"{DMI}/{part}") or "" for part in ("sys_vendor", "product_name")
        )
        return DetectedBoard(X86, f"{maker} {product}".strip(), "", "", _of_product(product))
    return DetectedBoard("unknown", model, soc, _release(sysfs.get(RELEASE) or ""), None)


def _of_product(product: str) -> str | None:
    """The profile of the machine with that product name of DMI.  The figures of one machine say
    nothing about another with the same processor."""
    every = (profile_reader.load(name) for name in profile_reader.names() if product)
    dmi = (p for p in every if not p.tree.compatible and p.tree.model == product)
    return next((p.name for p in dmi), None)


def _find(table: tuple[tuple[str, str], ...], text: str) -> str:
    return next((name for part, name in table if part in text), "")


def _release(text: str) -> str:
    found = re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", text)
    return f"R{found[1]}.{found[2]}" if found else ""
