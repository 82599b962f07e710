"""Which power model a board has: its own profile's, or on request a stand-in's.

A stand-in is another machine's profile.  Its figures are `modelled` like those of an own profile;
`described` names them, so that no output takes them for this machine's.
"""

from __future__ import annotations

from governors import profile_reader
from governors.power import PowerModel


def power_model(own: str | None, stand_in: str = "") -> PowerModel | None:
    """The model of a profile by its name: the stand-in's where one is asked for, else the board's
    own.  None where there is neither: nothing is modelled.  Raises ProfileError."""
    name = stand_in or own
    return PowerModel(profile_reader.load(name)) if name else None


def is_stand_in(model: PowerModel, own: str | None) -> bool:
    """Whether the model's figures are another machine's."""
    return model.profile.name != own


def described(model: PowerModel, own: str | None) -> str:
    """What the model's input covers, in words; a stand-in is named."""
    covers = model.profile.input_is
    if not is_stand_in(model, own):
        return covers
    return f"stand-in {model.profile.name}, another machine's figures: {covers}"
