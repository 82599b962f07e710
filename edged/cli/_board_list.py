"""`edged board --list`: the profiles, and what is known of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def profiles() -> list[dict[str, Any]]:
    """Every profile: what it describes, its sensor, its GPU, and the watts that its model knows."""
    from governors.power import PowerModel
    from governors.profile_reader import load, names

    found = []
    for profile in map(load, names()):
        model = PowerModel(profile)
        watts = model.influence()
        gpu = profile.gpu
        found.append({
            "name": profile.name, "board": f"simulated:{profile.name}", "title": profile.title,
            "soc": profile.soc, "cores": profile.core_count,
            "meter": None if profile.sensor.meter == "none" else profile.sensor.meter,
            "gpu": None if gpu is None else gpu.name,
            "gpu_watts": any(
                t.name.startswith("gpu") and t.figure.value is not None for t in profile.terms
            ),
            "idle_watts": watts.idle_min, "full_watts": watts.full_max,
        })  # fmt: skip
    return found


def show(found: list[dict[str, Any]], console: Console) -> None:
    """Print them."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    for column in ("board", "cores", "meter", "GPU", "idle W", "busy W"):
        table.add_column(column, overflow="fold")
    for p in found:
        gpu = "none" if p["gpu"] is None else "with watts" if p["gpu_watts"] else "no watts known"
        table.add_row(
            p["name"], p["title"], str(p["cores"]), p["meter"] or "none", gpu,
            f"{p['idle_watts']:.1f}", f"{p['full_watts']:.1f}",
        )  # fmt: skip
    console.print(table)
    note = "watts are modelled, without GPU work; docs/boards.md has errors and sources"
    console.print(note, soft_wrap=True)
    console.print("--board simulated:NAME simulates one", soft_wrap=True)
