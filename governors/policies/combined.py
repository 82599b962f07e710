"""Combination of several policies on one board: the daemon's and those of jobs.  Sans-IO.

All jobs of a daemon share its beats, its clocks and its input power.  Their policies therefore get
the same observation, and their decisions are merged:

    intake, not before   the strictest: the smallest share, the latest time
    clocks, sleeps       unanimous only; where all set a clock, the highest, so no race is late
    wait                 the longest planned; all stay within the shortest tolerance, and a tight
                         cap needs it; the planned race time is the longest
    upload               as soon as one policy sends

So caps and budgets combine without knowing of each other.  `hands_off` of one job keeps every clock
unset, but does not lift another job's cap: the cap applies to the input, which is not divided among
jobs.

Policies that count: that of each job that has chosen one, and the daemon's own where it was chosen
or no job has chosen.  A default does not count as a choice.  `governors.policies.running.Running`
holds the choices: `choose(job, name, settings)`, `drop(job)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from governors.policies.base import (
    RELEASE,
    Act,
    Budget,
    ClockSetting,
    Decision,
    Observation,
    Policy,
)
from governors.work import Dial

DAEMON = ""
"""Key of the daemon's own policy among the names of jobs."""


class Combined(Policy):
    """Merges the decisions of several policies."""

    name = "combined"

    def __init__(self, voices: Mapping[str, Policy]) -> None:
        """`voices`: at least one policy by job; all share one account."""
        first = next(iter(voices.values()))
        super().__init__({}, first.model, first.account)
        self.voices = dict(voices)
        caps = [p.cap_watts for p in voices.values() if p.cap_watts is not None]
        self.cap_watts = min(caps, default=None)
        self.needs = tuple(dict.fromkeys(need for p in voices.values() for need in p.needs))

    def race(self, observed: Observation) -> Decision:
        """The merged decision before a race."""
        return self._combined(
            {voice: p.race(observed) for voice, p in self.voices.items()}, observed
        )

    def commit(self, observed: Observation) -> Decision:
        """The merged decision before a beat that only commits."""
        return self._combined(
            {voice: p.commit(observed) for voice, p in self.voices.items()}, observed
        )

    def idle(self, observed: Observation) -> Decision:
        """The merged decision after a race."""
        return self._combined(
            {voice: p.idle(observed) for voice, p in self.voices.items()}, observed
        )

    def forecast(self, observed: Observation) -> str:
        """The forecasts of all policies, joined."""
        return self._joined_text({voice: p.forecast(observed) for voice, p in self.voices.items()})

    def budget(self, observed: Observation) -> Budget | None:
        """The budget that runs out first."""
        kept = [b for p in self.voices.values() if (b := p.budget(observed)) is not None]
        return min(kept, key=lambda b: b.forecast_j, default=None)

    def max_celsius(self, observed: Observation) -> float | None:
        """The lowest limit of any policy."""
        limits = [p.max_celsius(observed) for p in self.voices.values()]
        return min((limit for limit in limits if limit is not None), default=None)

    def _combined(self, answers: Mapping[str, Decision], observed: Observation) -> Decision:
        every = list(answers.values())
        waits = [d.wait_share for voice, d in answers.items() if self.voices[voice].plans]
        return Decision(
            self._joined_text({voice: d.reason for voice, d in answers.items()}),
            {dial.name: _agreed(dial, every) for dial in observed.dials},
            wait_share=max(waits, default=1.0),
            race_us=max(d.race_us for d in every),
            admit_share=min(d.admit_share for d in every),
            units_max=min(d.units_max for d in every),
            not_before_us=max(d.not_before_us for d in every),
            sleep=tuple(s for s in every[0].sleep if all(s in d.sleep for d in every)),
            upload=any(d.upload for d in every),
        )

    def _joined_text(self, texts: Mapping[str, str]) -> str:
        if len(self.voices) == 1:
            return next(iter(texts.values()))
        return "; ".join(
            f"{self.voices[voice].name} ({f'job {voice}' if voice else 'daemon'}): {text}"
            for voice, text in texts.items()
            if text
        )


def combine(chosen: Mapping[str, Policy], own: Policy, own_chosen: bool) -> Policy:
    """One policy that stands for those of the jobs and, if `own_chosen`, the daemon's own."""
    if not chosen:
        return own
    return Combined({DAEMON: own, **chosen} if own_chosen else chosen)


def _agreed(dial: Dial, answers: Sequence[Decision]) -> ClockSetting:
    """The highest clock where all set one; a cap only where all cap."""
    asked = [d.clocks.get(dial.name, RELEASE) for d in answers]
    if any(s.act is Act.RELEASE for s in asked):
        return RELEASE
    pins = [s for s in asked if s.act is Act.PIN]
    return max(pins or asked, key=lambda s: s.hz)
