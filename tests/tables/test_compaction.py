"""The rules of compaction, and what `auto` costs beside the best that hindsight could do.

A trace is a list of runs' sizes (negative) and numbers of probed keys (positive).  A probe costs 1
for each key and each run behind the first one, a merge `price` a row.
"""

import random

import pytest

from edged.tables.compaction import (
    RUNS_MAX,
    RunDebt,
    after_probe,
    suffix,
)
from tests import whole


def merged(sizes, count):
    """The runs after a merge of the newest `count`."""
    at = len(sizes) - count
    return (*sizes[:at], sum(sizes[at:]))


def optimum(trace, price):
    """The least cost of a trace: by dynamic programming over all partitions into runs."""
    best = {(): 0.0}
    for event in trace:
        after = {}
        for sizes, cost in best.items():
            if event < 0:
                options = [((*sizes, -event), cost)]
            else:
                options = [(sizes, cost)] + [
                    (merged(sizes, n), cost + price * sum(sizes[-n:]))
                    for n in range(2, len(sizes) + 1)
                ]
                options = [(s, c + event * max(0, len(s) - 1)) for s, c in options]
            for sizes_after, total in options:
                if total < after.get(sizes_after, float("inf")):
                    after[sizes_after] = total
        best = after
    return min(best.values())


class MergeGame:
    """All rules against all traces: a trace of up to `runs` runs of the sizes given and any number
    of probed keys, which ends when it likes.

    `guarantees(ratio)`: some rule without foresight never costs more than `ratio` times `optimum`.
    The search is exhaustive: for each next event, each answer, with the least cost of each
    partition that hindsight may have reached (the work function of competitive analysis).
    """

    def __init__(self, runs, sizes, price):
        self.runs, self.sizes, self.price = runs, sizes, price

    def guarantees(self, ratio):
        self.ratio, self.known = ratio, {}
        return all(self._holds((s,), 0, {(s,): 0}, self.runs - 1) for s in self.sizes)

    def _holds(self, sizes, cost, hindsight, left):
        at = (sizes, cost, tuple(sorted(hindsight.items())), left)
        if at not in self.known:
            self.known[at] = self._survives_probe(sizes, cost, hindsight, left) and all(
                self._holds((*sizes, s), cost, {(*k, s): c for k, c in hindsight.items()}, left - 1)
                for s in self.sizes[: None if left else 0]
            )
        return self.known[at]

    def _survives_probe(self, sizes, cost, hindsight, left):
        """One run pays nothing, and a probe then helps the rule."""
        best = {}
        for kept, spent in hindsight.items():
            for after, price in self._choices(kept):
                best[after] = min(best.get(after, float("inf")), spent + price)
        best = {kept: spent + len(kept) - 1 for kept, spent in best.items()}
        most = self.ratio * min(best.values())
        return len(sizes) == 1 or any(
            (total := cost + price + len(after) - 1) <= most
            and self._holds(after, total, best, left)
            for after, price in self._choices(sizes)
        )

    def _choices(self, sizes):
        yield sizes, 0
        for count in range(2, len(sizes) + 1):
            yield merged(sizes, count), self.price * sum(sizes[-count:])


def test_no_rule_without_foresight_costs_at_most_twice_the_optimum():
    assert MergeGame(2, (1, 8), 4).guarantees(2.0)
    sizes, forced = whole.count(((1, 3), 2.25), ((1, 4), 2.36))
    assert not MergeGame(3, sizes, 4).guarantees(forced)
    assert MergeGame(3, sizes, 4).guarantees(forced + 0.05)


def cost_of(rule, trace, price, **options):
    """What a rule costs; it is asked before every probed key."""
    runs, cost = [], 0.0
    for event in trace:
        if event < 0:
            runs.append(RunDebt(-event))
            continue
        for _ in range(event):
            count = suffix(rule, after_probe(runs, 1, 1.0), merge_ns=price, **options)
            if count:
                cost += price * sum(run.rows for run in runs[-count:])
                runs[-count:] = [RunDebt(sum(run.rows for run in runs[-count:]))]
            cost += max(0, len(runs) - 1)
            runs = after_probe(runs, 1, 1.0)
    return cost


def random_trace(rng):
    """Up to eight runs, with probes after each."""
    size = rng.choice([lambda: 1, lambda: rng.randint(1, 20), lambda: int(2 ** rng.uniform(0, 8))])
    keys = rng.choice([
        lambda: rng.randint(0, 5), lambda: int(2 ** rng.uniform(0, 9)),
        lambda: rng.choice([0, 0, 0, 200]),
    ])  # fmt: skip
    trace = [event for _ in range(rng.randint(2, 8)) for event in (-size(), keys())]
    if rng.random() < 0.3:
        trace[0] *= rng.choice([10, 100])
    return trace


@pytest.mark.parametrize("sizes", [(5, 1), (1, 1), (100, 7), (3, 90)])
@pytest.mark.parametrize("price", [1, 2, 10])
def test_one_run_behind_another_costs_at_most_twice_the_optimum(sizes, price):
    for keys in range(0, 3 * price * sum(sizes), whole.count(37, 1)):
        trace = [*(-size for size in sizes), keys]
        assert cost_of("auto", trace, price) <= 2 * optimum(trace, price)


def ratios(traces, rule, **options):
    """Cost over optimum of each trace that costs anything."""
    best = [(trace, price, optimum(trace, price)) for trace, price in traces]
    return sorted(cost_of(rule, t, p, **options) / least for t, p, least in best if least)


def test_auto_stays_near_the_optimum_on_random_short_traces_and_fixed_fanouts_do_not():
    rng = random.Random(11)
    traces = [(random_trace(rng), rng.choice([1, 2, 4, 10])) for _ in range(whole.count(400, 4000))]
    found = ratios(traces, "auto")
    assert sum(found) / len(found) < 1.5
    assert found[int(0.95 * len(found))] < 2.0 + 0.1
    assert found[-1] < 4.0
    for fanout in (2, 4, 8):
        fixed = ratios(traces, "always", fanout=fanout)
        assert sum(fixed) / len(fixed) > 2 * sum(found) / len(found)


def test_nothing_merges_while_nothing_probes_until_the_cap():
    runs = [RunDebt(10)] * RUNS_MAX
    for rule in ("auto", "never"):
        assert suffix(rule, runs) == 0
    assert suffix("seed", runs, ended=True) == 0
    for rule in ("auto", "never", "always", "seed"):
        assert suffix(rule, [*runs, RunDebt(10)], ended=True) >= 2


def test_a_row_is_merged_a_logarithmic_number_of_times_under_the_cap():
    runs, merged_rows = [], 0
    for _ in range(10_000):
        runs.append(RunDebt(1))
        count = suffix("never", runs)
        if count:
            rows = sum(run.rows for run in runs[-count:])
            merged_rows += rows
            runs[-count:] = [RunDebt(rows)]
        assert len(runs) <= RUNS_MAX + 1
    assert merged_rows < 10 * 10_000


def test_always_keeps_fewer_than_the_fanout_of_each_size():
    runs = []
    for _ in range(1_000):
        runs.append(1)
        while count := suffix("always", [RunDebt(rows) for rows in runs]):
            runs[-count:] = [sum(runs[-count:])]
        assert len(runs) <= 3 * 6
