"""Tariffs of a running daemon: prices for policies and for placement."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edged.energy.board import BoardSite
from edged.placement.profile import EnergyCalibration, load_energy
from governors.board_tariffs import Measured, MeasuredTariff, ModelTariff
from governors.meters import settings as meters
from governors.placement_prices import PlacementPrices
from governors.policies.base import Observation
from governors.policies.running import Running
from governors.tariff import RadioPrice, Tariff


def board_tariff(
    site: BoardSite, directory: Path | None = None, radio: meters.RadioSettings | None = None
) -> Tariff | None:
    """Prices of the board: by its power model, with race watts of `edged calibrate` where it was
    run on this board.  `radio`: configured figures of the uplink, by default the profile's.  None
    without a power model.  Raises ConfigError."""
    if site.model is None:
        return None
    uplink = None if radio is None else RadioPrice(radio.tail_joules, radio.joules_per_byte)
    tariff = ModelTariff(site.model, radio=uplink)
    energy = None if directory is None else load_energy(directory)
    if energy is None or energy.board != site.board.name:
        return tariff
    if energy.simulated != (site.simulated is not None):
        return tariff
    return calibrated_tariff(tariff, energy)


def calibrated_tariff(tariff: Tariff, energy: EnergyCalibration) -> Tariff:
    """A tariff with calibrated race watts."""
    cpu, gpu = energy.of_device("cpu"), energy.of_device("cuda")
    if cpu is None:
        return tariff
    on_gpu = None if gpu is None else Measured(gpu.curve, gpu.cores)
    return MeasuredTariff(tariff, Measured(cpu.curve, cpu.cores), on_gpu)


def prices(
    site: BoardSite, tariff: Tariff | None, running: Running, look: Callable[[], Observation]
) -> PlacementPrices | None:
    """Prices for placement; None without a power model.  Kernels were measured at the highest clock
    that the board allows.  `look`: returns the current observation."""
    if tariff is None:
        return None
    knobs = [k for k in site.knobs if k.kind == "cpu" and k.max_path]
    now = (site.sysfs.get_int(k.max_path) for k in knobs)
    tops = [hz * k.unit_hz for hz, k in zip(now, knobs, strict=True) if hz]
    return PlacementPrices(tariff, max(tops, default=10**9), running, look)
