"""Constraints between the jobs of one daemon."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from edged.errors import ConfigError, EdgedError, JobError
from edged.job.plan import JobPlan

STORE_PER_MEMORY = 3
"""Smallest bounded store, as a multiple of the jobs' memory."""


def check_coexistence(plans: Sequence[JobPlan]) -> None:
    """Check that jobs share neither names nor the targets of their sinks.  Raises ConfigError or
    JobError."""
    names = [plan.name for plan in plans]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two jobs are called {name}; rename one of them")
    owners: dict[str, str] = {}
    for plan in plans:
        for sink in plan.sinks.values():
            for claim in sink.claims():
                if owners.setdefault(claim, plan.name) != plan.name:
                    raise JobError(
                        f"{plan.name}.sinks.{sink.id}",
                        f"job {owners[claim]} already makes {claim}",
                        "name another stream, or another path",
                    )


def check_listeners(plans: Sequence[JobPlan]) -> None:
    """Check that streams of one listener have distinct names.  Raises JobError."""
    owners: dict[tuple[str, str], str] = {}
    for plan in plans:
        for name, stream in plan.streams.items():
            listener = stream.source.share_key()
            owner = owners.setdefault((listener, name), plan.name)
            if stream.source.listens and owner != plan.name:
                raise JobError(
                    f"{plan.name}.{stream.section}.{name}.source",
                    f"jobs {owner} and {plan.name} both have a stream {name} on {listener}",
                    "give one of them another name or another listener",
                )


def check_hearing(plans: Sequence[JobPlan], suspend: str) -> None:
    """Check that no source goes deaf where the machine is suspended between beats.  Raises
    JobError."""
    for plan in plans if suspend != "off" else ():
        for name, stream in plan.streams.items():
            if not stream.source.polls:
                raise JobError(
                    f"{plan.name}.{stream.section}.{name}.source",
                    f"{stream.source.kind} would miss input while the machine is suspended"
                    f" (energy.suspend = {suspend}): its peers come by themselves",
                    "let a source that polls read it, such as file, or set energy.suspend = off",
                )


def replacement_order(
    running: Mapping[str, JobPlan],
    new: Mapping[str, JobPlan],
    check: Callable[[Sequence[JobPlan]], None],
) -> list[str]:
    """The names of `new` jobs in an order in which each can replace its `running` predecessor.

    `check` raises EdgedError for a set of jobs that cannot coexist.  A job whose resource is still
    in use waits until the other job has released it.  Raises JobError where jobs wait for each
    other in a circle.
    """
    coexisting, pending, order = dict(running), list(new), list[str]()
    while pending:
        problems: list[EdgedError] = []
        for name in pending:
            try:
                check(list({**coexisting, name: new[name]}.values()))
            except EdgedError as problem:
                problems.append(problem)
            else:
                coexisting[name] = new[name]
                order.append(name)
                break
        else:
            raise _deadlock(pending, problems[0])
        pending.remove(order[-1])
    return order


def _deadlock(jobs: Sequence[str], problem: EdgedError) -> EdgedError:
    if not isinstance(problem, JobError) or len(jobs) == 1:
        return problem
    advice = (
        f"{', '.join(jobs)} exchange names with each other: first give one of them names of its"
        " own, then apply this change"
    )
    return JobError(problem.path, problem.problem, advice)


def check_store_size(
    store_bytes_max: int | None, plans: Sequence[JobPlan], shelved_bytes: int = 0
) -> None:
    """Check that a bounded store has room for two snapshots and a beat's inputs.  Raises
    ConfigError.

    Both are bounded by the jobs' memory, with `shelved_bytes` for jobs that are kept aside; a
    smaller store could stay full for ever.
    """
    memory_bytes = shelved_bytes + sum(plan.promises.memory_bytes for plan in plans)
    least = STORE_PER_MEMORY * memory_bytes
    if store_bytes_max is not None and store_bytes_max < least:
        raise ConfigError(
            f"a store of {store_bytes_max} bytes is too small for the jobs' memory: allow "
            f"at least {least} bytes ({STORE_PER_MEMORY} times their promised memory), "
            "or lower their promises"
        )
