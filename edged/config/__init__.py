"""The configuration of daemon and API: one TOML file, drop-ins, environment and flags."""

from edged.config.read import CONFIG, Config, SettingError, faults, files, load, loopback, read
from edged.config.sections import SETTINGS

__all__ = [
    "CONFIG",
    "SETTINGS",
    "Config",
    "SettingError",
    "faults",
    "files",
    "load",
    "loopback",
    "read",
]
