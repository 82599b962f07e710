"""Acknowledgements of hops without a log: a producer gets one when everything made of its batch is
acknowledged, by all receivers of all links that its rows go to."""

from __future__ import annotations

from edged.beat.inputs import Inputs
from edged.beat.jobs import JobRegistry
from edged.beat.runtime import JobRuntime
from edged.data.flow import owner


class ForwardedAcks:
    """Passes acknowledgements of links on to sources; the commit thread's."""

    def __init__(self, registry: JobRegistry, inputs: Inputs) -> None:
        self._registry, self._inputs = registry, inputs
        self._known: dict[tuple[str, str, str], dict[str, int]] = {}
        """By job, stream and producer: what each sink's receivers have."""

    def acked(self, name: str, instance: int, seq: int) -> None:
        """An instance of a link has its pages up to `seq`."""
        for job in list(self._registry.list):
            for id, sink in job.sinks.items() if job.plan.promises.forwards else ():
                found = sink.forwarded(name, instance, seq)
                if found is not None:
                    self._pass_on(job, id, *found)

    def _pass_on(self, job: JobRuntime, sink: str, producer: str, seq: int) -> None:
        stream = root_of(job, sink)
        known = self._known.setdefault((job.plan.name, stream, producer), {})
        known[sink] = seq
        sinks = [id for id in job.sinks if root_of(job, id) == stream]
        if lowest := min(known.get(id, 0) for id in sinks):
            for source in list(self._inputs.sources):
                if (job.plan.name, stream) in source.feeds:
                    source.forwarded(stream, producer, lowest)


def root_of(job: JobRuntime, sink: str) -> str:
    """The stream whose rows a sink of such a job gets: its operators have one input each."""
    name = owner(job.plan.inputs[sink][0])
    while name not in job.streams:
        name = owner(job.plan.inputs[name][0])
    return name
