"""The facade for plug-ins: everything that a third party's kind needs, and nothing else.

A plug-in is an installed package with entry points (docs/extending.md has one complete example of
each kind).  The name of the entry point is the kind's name; importing its module registers it:

    group             decorator      base class
    edged.sources     @source        SourcePlan, Source
    edged.operators   @operator      OperatorPlan, Operator
    edged.sinks       @sink          SinkPlan, Sink
    edged.meters      @opener        PlainMeter (function that returns Found)
    edged.policies    @policy        Policy
    edged.functions   @function      a pure function of numbers, compiled by numba

Names in `__all__` change only with a line in the CHANGELOG.  Everything else of `edged` may change
at any time.  `read` checks values of a document and raises JobError with their path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from edged.data.columns import Batch, Column, empty_batch
from edged.data.flow import WATERMARK_MAX_US, WATERMARK_MIN_US, BeatContext, Flow, Link, State
from edged.data.gather import take
from edged.data.schema import Field, Schema
from edged.data.scratch import Scratch
from edged.data.staging import Staging
from edged.data.workers import Workers
from edged.documents import reader as read
from edged.documents.reach import Reach
from edged.errors import ConfigError, JobError
from edged.expressions import functions as _functions
from edged.expressions.plugin_functions import handler as _handler
from edged.operators.base import Operator, OperatorPlan, operator
from edged.pages.sealed import PageKey, SealedPage
from edged.platform.timers import TimerFd
from edged.sinks.base import Flush, Sink, SinkContext, SinkPlan, sink
from edged.sources.base import Source, SourcePlan, source
from governors.energy import Provenance, Rail
from governors.meters.base import BoardLike, Found, Missing, PlainMeter, Reading, opener
from governors.meters.settings import MeterSettings
from governors.policies.base import (
    Act,
    ClockSetting,
    Decision,
    Observation,
    Policy,
    PolicyError,
    policy,
)
from governors.policies.declared import FLAG, DeclaredSetting, SettingKind
from governors.quantities import ENERGY, NUMBER, POWER, SECONDS, SHARE, Quantity
from governors.sysfs import Sysfs, SysfsError

_Function = TypeVar("_Function", bound=Callable[..., Any])

__all__ = [
    "ENERGY", "FLAG", "NUMBER", "POWER", "SECONDS", "SHARE", "WATERMARK_MAX_US",
    "WATERMARK_MIN_US", "Act", "Batch", "BeatContext", "BoardLike", "ClockSetting", "Column",
    "ConfigError", "Decision", "DeclaredSetting", "Field", "Flow", "Flush", "Found", "JobError",
    "Link", "MeterSettings", "Missing", "Observation", "Operator", "OperatorPlan", "PageKey",
    "PlainMeter", "Policy", "PolicyError", "Provenance", "Quantity", "Rail", "Reach", "Reading",
    "Schema", "Scratch", "SealedPage", "SettingKind", "Sink", "SinkContext", "SinkPlan", "Source",
    "SourcePlan", "Staging", "State", "Sysfs", "SysfsError", "TimerFd", "Workers", "empty_batch",
    "function", "opener", "operator", "policy", "read", "sink", "source", "take",
]  # fmt: skip


def function(
    name: str, *, arguments: Sequence[str], returns: str
) -> Callable[[_Function], _Function]:
    """Decorator: register a pure function of numbers for expressions.

    `arguments` and `returns` are BOOLEAN, BIGINT, DOUBLE or TIMESTAMP.  The decorated name is
    numba's dispatcher: Python can call it too.  Raises ValueError and TypeError for what cannot be
    compiled, DuplicateName for a name that is taken.
    """

    def register(given: _Function) -> _Function:
        bind, compiled = _handler(given, name, arguments, returns)
        _functions.FUNCTIONS.register(name, bind, given.__module__)
        result: _Function = compiled
        return result

    return register
