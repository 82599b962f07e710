"""The constants of merges, as measured and kept, and the price of energy."""

import numpy as np

from edged.calibration import table_costs
from edged.control.table_debts import debt_lines
from edged.energy.merge_prices import CHARGING_SHARE, PRICE_US, UPLOAD_US, MergePrices
from edged.tables.base import TABLES, TableContext
from edged.tables.costs import MERGE_NS, PROBE_NS, MergePricing, load_costs, outline, save_costs
from governors.board_tariffs import ModelTariff
from governors.policies.base import Battery
from governors.power_models import power_model
from tests.tables import support
from tests.tables.test_members import ORDINARY, changes_of


def test_measured_constants_are_kept_in_the_store_and_defaults_stand_in(tmp_path):
    assert (load_costs(tmp_path).probe_ns, load_costs(tmp_path).merge_ns) == (PROBE_NS, MERGE_NS)
    assert "not measured" in outline(load_costs(tmp_path))
    measured = table_costs.measure(rows=40_000, probes=2_000)
    assert measured.probe_ns >= 1 < measured.merge_ns
    save_costs(measured, tmp_path)
    assert load_costs(tmp_path) == measured
    assert "measured here" in outline(measured)
    (tmp_path / "tables.json").write_text('{"format": 2}')
    assert load_costs(tmp_path) == MergePricing()


def state_of(folder, pricing):
    """A state of four runs."""
    context = TableContext(
        support.SystemDisk(), str(folder), support.workers(1), 1 << 20, pricing=pricing
    )
    state = TABLES.load()["runs"](ORDINARY, ("k",), context)
    for beat in range(4):
        state.apply(*changes_of(np.random.default_rng(beat), 300, 200))
    return state


def probes_until_merged(state, pricing, share):
    """Probes of 100 keys until something merges at this price."""
    keys = support.batch(support.key_schema(ORDINARY, ("k",)), [(k,) for k in range(100)])
    count = 0
    while not state.counters()["merges"]:
        state.probe(keys)
        count += 1
        pricing.share, before = share, pricing.share
        state.work(1 << 20)
        pricing.share = before
    return count


def test_debts_made_on_battery_are_paid_early_with_cheap_energy_and_late_the_other_way(tmp_path):
    counts = {}
    for probing, merging in ((1.0, 1.0), (1.0, 0.25), (0.25, 1.0), (0.25, 0.25)):
        pricing = MergePricing(share=probing)
        state = state_of(tmp_path / f"{probing} {merging}", pricing)
        counts[probing, merging] = probes_until_merged(state, pricing, merging)
        assert pricing.states == 1
        state.close()
        assert pricing.states == 0
    assert counts[1.0, 0.25] < counts[1.0, 1.0] == counts[0.25, 0.25] < counts[0.25, 1.0]


def test_energy_is_cheap_while_the_battery_charges_and_while_the_radio_has_the_board_awake():
    tariff = ModelTariff(power_model("orin-nano", ""))
    prices, pricing = MergePrices(tariff, lambda: 1_510_400_000), MergePricing(states=1)

    class Held:
        offered_bytes, passed_us, within_us = 0, 0, 0

    now, held = 10 * UPLOAD_US, Held()

    def look(charging):
        nonlocal now
        now += PRICE_US
        prices.set(pricing, lambda _: Battery(9.0, None, charging), held, now)
        return pricing.share

    assert look(charging=False) == 1.0
    assert not pricing.cheap
    assert pricing.joules(2e9) == 2 * pricing.watts > 0
    assert look(charging=True) == CHARGING_SHARE
    assert pricing.cheap
    held.passed_us = now
    assert 0 < look(charging=False) < 1.0
    assert pricing.note().endswith("pages are sent")
    held.passed_us = now - UPLOAD_US
    assert look(charging=False) == 1.0
    prices.set(pricing, lambda _: Battery(9.0, None, True), held, now + 1)
    assert pricing.share == 1.0, "it was looked at just before"


def test_a_running_job_s_debts_are_shown_with_rates_and_joules():
    figures = {"left_debt_ns": 5e6, "left_debt_j": 0.002, "left_runs": 3, "left_probed_keys": 100,
               "left_merged_rows": 40, "table_debt_ns": 0.0, "table_runs": 1,
               "table_probed_keys": 0, "table_merged_rows": 0}  # fmt: skip
    lines = debt_lines({"operators": {"j": figures}}, 10.0)
    assert lines == [
        "j left: 3 runs, 10 keys/s probed, 4 rows/s merged, debt 5.0 ms (2.00 mJ)",
        "j table: 1 runs, 0 keys/s probed, 0 rows/s merged, debt 0.0 ms",
    ]
