"""Kernels of tables that change: row images, sorted runs, probes and merges."""

from kernels.cpu.tables import images, probe, sort

__all__ = ["images", "probe", "sort"]
