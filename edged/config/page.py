"""The documentation of the settings, made from their declarations.

python -m edged.config.page        writes docs/config.md, deploy/edged.toml, and the marked parts of
                                   docs/energy.md
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from edged.config import energy_tables
from edged.config.sections import SECTIONS, SETTINGS, Setting
from edged.documents.units import SIZE_UNITS

ROOT = Path(__file__).parents[2]
DOCUMENT = Path("docs/config.md")
COMMENTED = Path("deploy/edged.toml")
ENERGY = Path("docs/energy.md")
PARTS = {"policies": energy_tables.policies, "meters": energy_tables.meters}
"""Made parts of docs/energy.md, by the name in their markers."""
_ENERGY = """
## Settings of policies

The keys of `energy.settings`, of `[governor] settings` of a [job](jobs.md#governor), of
`--governor` and of `--set`. `edged governor policies` prints them, those of plug-ins included. A
number counts in the unit that the table names; a text names its own unit.
[Energy](energy.md#policies) says what the policies do.

{policies}

## Settings of meters

The keys of `energy.meters`, which is `[energy.meters]` in this file, and of the table `[meters]` in
a file for `--meters`; see [energy](energy.md#meters).

{meters}
"""
_SET = {"run.jobs": '["jobs.d/*.toml"]'}
"""Settings that are not commented out in an installed daemon's file."""
_HEAD = """\
# Configuration

<!-- Made by `python -m edged.config.page` from edged/config/sections.py, governors/policies and
governors/meters/settings.py: change those. -->

Daemon and API read one TOML file: `/etc/edged/edged.toml` of an installed daemon, else the file of
`edged run --config`. Every value may also be set in a drop-in, the environment or a flag. Later
rows override earlier ones:

| from | for example |
|---|---|
| the default | below |
| a credential that systemd passes | `LoadCredential=uplink-token:/etc/edged/uplink-token` |
| the file | `/etc/edged/edged.toml` |
| drop-ins beside it, by name | `/etc/edged/edged.toml.d/50-centre.toml` |
| the environment | `EDGED_STORE__DIRECTORY=/data/edged` |
| a flag of `edged run` | `--store /data/edged` |

A table, such as `energy.settings`, is one value and is replaced as a whole. Relative paths start at
the directory of their file; in the environment and in flags at the working directory. In the
environment a list is `a,b` or `["a", "b"]`, a table `watts = 5.0` or `{ watts = 5.0 }`. Sizes are
`64KiB`, `512MiB`, `2GiB`, or bytes.

`edged validate /etc/edged/edged.toml` checks the file with its drop-ins, the environment, the
board, the policy, the meters, the files that it names, and every job, alone and with the others.
`--values` shows each value and its origin. An unknown key is an error:

    store.byte_max: unknown key (did you mean store.bytes_max?) [file:/etc/edged/edged.toml:9]
    run.url: unknown key (did you mean uplink.url?) [file:/etc/edged/edged.toml:12]
    EDGED_STORE_DIRECTORY: unknown variable (did you mean EDGED_STORE__DIRECTORY?)
    energy.settings: power_cap has no setting wats (did you mean watts?) [flag:--governor]

`systemctl reload edged` (SIGHUP) reads and checks everything again. If anything is wrong, nothing
changes, and the log names the fault. Otherwise changes of settings marked *reload* are applied
without losing a tuple; changes of other settings are reported and wait for the next start.
"""


def document() -> str:
    """docs/config.md."""
    parts = [_HEAD]
    for section, kind in SECTIONS.items():
        parts.append(f"\n## [{section}]\n\n{kind.__doc__}\n")
        parts.append("| key | kind | default | meaning | |\n|---|---|---|---|---|")
        parts += [_row(setting) for setting in _of(section, kind)]
    made = {name: make() for name, make in PARTS.items()}
    return "\n".join(parts) + "\n" + _ENERGY.format(**made)


def energy(text: str) -> str:
    """docs/energy.md with its made parts, between `<!-- NAME: made ... -->` and `<!-- end -->`."""
    for name, make in PARTS.items():
        marked = re.compile(rf"(<!-- {name}: [^>]*-->\n).*?(<!-- end -->)", re.DOTALL)
        made = make().replace("\\", r"\\")
        text = marked.sub(rf"\1\n{made}\n\n\2", text)
    return text


def commented() -> str:
    """deploy/edged.toml: every setting with its default, commented out."""
    lines = [
        "# The configuration of edged and its API: docs/config.md.",
        "# A commented line shows the default, or an example where the default is empty.",
        "# `edged validate /etc/edged/edged.toml` checks a change, `systemctl reload edged`",
        "# applies it.",
    ]
    for section, kind in SECTIONS.items():
        lines += ["", f"# {kind.__doc__}", f"[{section}]"]
        for setting in _of(section, kind):
            lines += textwrap.wrap(setting.text, 97, initial_indent="# ", subsequent_indent="# ")
            name = setting.key.split(".")[1]
            if setting.key in _SET:
                lines.append(f"{name} = {_SET[setting.key]}")
            else:
                lines.append(f"#{name} = {setting.example or _default(setting)}")
    return "\n".join(lines) + "\n"


def toml(value: Any) -> str:
    """A value of a setting as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml, value))}]"
    return "{}" if isinstance(value, dict) else f"{value}"


def _default(setting: Setting) -> str:
    if setting.kind.name == "size":
        for unit, size in reversed(SIZE_UNITS.items()):
            if setting.default and setting.default % size == 0:
                return toml(f"{setting.default // size}{unit}")
    return toml(setting.default)


def _of(section: str, kind: type[Any]) -> Iterator[Setting]:
    return (SETTINGS[f"{section}.{f.name}"] for f in fields(kind))


def _row(setting: Setting) -> str:
    name = setting.key.split(".")[1]
    example = f" For example `{setting.example}`." if setting.example else ""
    loaded = f" Credential `{setting.credential}`." if setting.credential else ""
    kind = setting.kind.name.replace("|", "\\|")
    text = f"{setting.text}{example}{loaded}".replace("  ", " ")
    live = "reload" if setting.live else ""
    return f"| `{name}` | {kind} | `{_default(setting)}` | {text} | {live} |"


def main() -> None:
    """Write all files."""
    (ROOT / ENERGY).write_text(energy((ROOT / ENERGY).read_text()))
    (ROOT / DOCUMENT).write_text(document())
    (ROOT / COMMENTED).write_text(commented())


if __name__ == "__main__":
    main()
