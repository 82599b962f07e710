"""Exceptions of `governors`.

    GovernorError               what failed, where, and what to do
    ├── ProfileError            invalid board profile or fitted model; names file and key
    ├── ActuatorError           a limit could not be set
    │   ├── NotPermitted        neither this process nor a helper has the right to write
    │   └── TakenOver           another process changed a limit that edged had set
    └── MeterError              a meter cannot be opened or read; its time is a gap, never a zero

`governors.sysfs.SysfsError` reports the failure of one file.  Callers that know what the file is
for convert it into one of these.
"""

from __future__ import annotations


class GovernorError(Exception):
    """Base class."""


class ProfileError(GovernorError):
    """A board profile or a model is invalid."""


class ActuatorError(GovernorError):
    """A limit could not be set."""


class NotPermitted(ActuatorError):
    """Neither this process nor a helper may write the file."""


class TakenOver(ActuatorError):
    """Another process changed a limit that edged had set."""


class MeterError(GovernorError):
    """A meter cannot be opened or read."""
