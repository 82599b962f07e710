"""Several policies on one board: the daemon's own and those that jobs have chosen.  Sans-IO.

All jobs of a daemon share its beats, its clocks and its input power, so their policies are asked
together, about the same work and the same joules, and their answers are made one:

    intake, not before   the strictest: the least that any admits, the latest time that any names
    clocks, sleeps       unanimity: what one of them would leave alone is left alone; where all set
                         a clock it is the highest of theirs, so that no race is later than planned
    wait                 the longest that any of them plans: all stay within the shortest tolerance,
                         and a cap that is tight needs it; planned races get the most time
    upload               as soon as any sends: nobody's results wait longer than it has planned

So caps and budgets add up without knowing of each other, `hands_off` of one job keeps its hands off
the board, and it still pays for the strictest cap of the others: what is capped is the input, which
nobody can divide among jobs.

Whose voice counts: that of each job that has chosen a policy, and the daemon's own where a person
has chosen it or no job has; a default is no choice.  `governors.policies.running.Running` keeps the
voices: `choose(job, name, settings)`, `drop(job)`.
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
"""Who the daemon's own policy speaks for, among the names of jobs."""


class Combined(Policy):
    """Asks each, and answers for all."""

    name = "combined"

    def __init__(self, voices: Mapping[str, Policy]) -> None:
        """`voices`: at least one, by whom it speaks for; all keep one account."""
        first = next(iter(voices.values()))
        super().__init__({}, first.model, first.account)
        self.voices = dict(voices)

    def race(self, observed: Observation) -> Decision:
        """What all of them agree on, before the race."""
        return self._combined(
            {voice: p.race(observed) for voice, p in self.voices.items()}, observed
        )

    def idle(self, observed: Observation) -> Decision:
        """What all of them agree on, after it."""
        return self._combined(
            {voice: p.idle(observed) for voice, p in self.voices.items()}, observed
        )

    def forecast(self, observed: Observation) -> str:
        """What each of them foresees, if it does."""
        return self._joined_text({voice: p.forecast(observed) for voice, p in self.voices.items()})

    def budget(self, observed: Observation) -> Budget | None:
        """The one of them that runs out first."""
        kept = [b for p in self.voices.values() if (b := p.budget(observed)) is not None]
        return min(kept, key=lambda b: b.forecast_j, default=None)

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
    """The policy that answers for the daemon's own and those that jobs have chosen."""
    if not chosen:
        return own
    return Combined({DAEMON: own, **chosen} if own_chosen else chosen)


def _agreed(dial: Dial, answers: Sequence[Decision]) -> ClockSetting:
    """The highest clock of all, where all set it; a cap only where all cap."""
    asked = [d.clocks.get(dial.name, RELEASE) for d in answers]
    if any(s.act is Act.RELEASE for s in asked):
        return RELEASE
    pins = [s for s in asked if s.act is Act.PIN]
    return max(pins or asked, key=lambda s: s.hz)
