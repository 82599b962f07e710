"""Where the profile of `edged calibrate` lies: `placement.json` in the state directory.

`edged.placement` says what it holds, `edged.bench.join_calibrate` makes it.
"""

from __future__ import annotations

from pathlib import Path

from edged.disk import SystemDisk, write_whole
from edged.errors import ConfigError
from edged.placement import Profile

FILE = "placement.json"


def load_profile(directory: Path) -> Profile | None:
    """The profile of a state directory, if it has one.  Raises ConfigError."""
    path = directory / FILE
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        raise ConfigError(f"cannot read {path}: {problem}") from problem
    return Profile.decode(text, str(path))


def save_profile(profile: Profile, directory: Path) -> Path:
    """Write the profile into a state directory, whole or not at all.  Raises ConfigError."""
    path = directory / FILE
    try:
        write_whole(SystemDisk(), str(path), [memoryview(profile.encode().encode())])
    except OSError as problem:
        raise ConfigError(f"cannot write {path}: {problem}") from problem
    return path
