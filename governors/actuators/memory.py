"""Memory clock cap on Tegra: the file that nvpmodel writes (docs/hardware.md).

It holds Hz and is world-readable; 0 means no cap.  The clock itself is in debugfs, readable by root
only.  The rates are those observed on Orin; other SoCs have no public rates and give no knob.
"""

from __future__ import annotations

from collections.abc import Iterator

from governors.actuators.base import Knob, finder
from governors.detect import DetectedBoard
from governors.sysfs import Sysfs

CAPS = ("/sys/kernel/nvpmodel_clk_cap/emc", "/sys/kernel/nvpmodel_emc_cap/emc_iso_cap")
"""R36 and later; R34 and R35."""
RATES_HZ = {"tegra234": (204_000_000, 665_600_000, 2_133_000_000, 3_199_000_000)}


@finder
def caps(sysfs: Sysfs, board: DetectedBoard) -> Iterator[Knob]:
    """`emc`, where the SoC's rates are known and the file exists."""
    rates = RATES_HZ.get(board.soc)
    for path in CAPS:
        if rates and sysfs.get_int(path) is not None:
            yield Knob(
                "emc", "memory", 1, "", path, "", rates, rates[0], rates[-1],
                uncapped="0", optional=True,
            )  # fmt: skip
            return
