"""Where operators of users have their code (`edged.operators.user.code`), for this process and the
ones that it starts: checks and compilations in child processes look in the same directories."""

from __future__ import annotations

import os
from pathlib import Path

from edged.config.read import Config

DIRECTORY_VARIABLE, KEPT_VARIABLE = "EDGED_OPERATORS", "EDGED_OPERATORS_KEPT"
"""The directory of files, and the one of kept texts."""


def set_code_directories(config: Config) -> None:
    """Take the directories from the configuration; a variable of the environment that is set stays
    where the configuration names none."""
    if config.run.operators:
        os.environ[DIRECTORY_VARIABLE] = str(Path(config.run.operators).absolute())
    os.environ[KEPT_VARIABLE] = str(Path(config.store.directory).absolute() / "code")
