"""Every error of the energy side.

    GovernorError               what went wrong, where, and what to do
    ├── ProfileError            a board profile or a fitted model is wrong; names file and key
    ├── ActuatorError           a limit could not be set as asked
    │   ├── NotPermitted        no right to write, and no helper that has it
    │   └── TakenOver           somebody else changed a limit that was ours
    └── MeterError              a meter cannot be opened or read; its time is a gap, never a zero

`SysfsError` and its kinds (see `governors.sysfs`) say what one file answered; they are turned into
one of these where it is known what that means.
"""

from __future__ import annotations


class GovernorError(Exception):
    """Base of the tree."""


class ProfileError(GovernorError):
    """A board profile or a model is wrong."""


class ActuatorError(GovernorError):
    """A limit could not be set as asked."""


class NotPermitted(ActuatorError):
    """Neither this process nor a helper may write it."""


class TakenOver(ActuatorError):
    """Somebody else changed what was ours."""


class MeterError(GovernorError):
    """A meter cannot be opened or read."""
