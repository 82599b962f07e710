"""Files of user code run by Python itself, row by row."""

from __future__ import annotations

import re


class Record:
    """A row, a record of state, or parameters."""

    def __init__(self, **fields):
        self.__dict__.update(fields)


class Outputs:
    """Collects what the code gives to outputs."""

    def __init__(self, names):
        self.rows = {name: [] for name in names}

    def __getattr__(self, name):
        return lambda **fields: self.rows[name].append(fields)


class Keep:
    """How long records are kept: the column of times, `keep`, and the horizon of each row."""

    def __init__(self, time, keep, horizons):
        self.time, self.keep, self.horizons = time, keep, horizons
        self.latest = {}

    def note(self, i, row, key, records):
        """Forget a record where row `i` comes too late for it, and note the row's time."""
        time, horizon = row[self.time], self.horizons[i]
        last = self.latest.get(key)
        if last is not None and (last < horizon or time - last > self.keep):
            del records[key]
            last = None
        self.latest[key] = max(time, horizon if last is None else last)


def run(text, names, rows, keys=(), parameters=None, keep=None):
    """(rows by output, records by key, errors) of `on_row` over rows as dicts.

    An error is (number of the row, name of the exception); its row changes nothing but how long a
    record is kept.
    """
    module = {}
    exec("from __future__ import annotations\n" + text, module)
    outputs, records, errors = {name: [] for name in names}, {}, []
    for i, row in enumerate(rows):
        key = tuple(_same(row[k]) for k in keys)
        if keep:
            keep.note(i, row, key, records)
        before = records.get(key) or fresh(module.get("State"))
        record, out = Record(**_copied(before)), Outputs(names)
        records[key] = before
        arguments = [Record(**row), record, out]
        try:
            module["on_row"](*arguments, *([Record(**parameters)] if parameters else []))
        except Exception as problem:
            errors.append((i, type(problem).__name__))
            continue
        records[key] = record.__dict__
        for name, found in out.rows.items():
            outputs[name] += found
    return outputs, records, errors


def fresh(state):
    """A new record of a class of state."""
    found = {}
    for name, kind in getattr(state, "__annotations__", {}).items():
        size = re.search(r"\[(\d+)\]", kind)
        default = getattr(state, name, {"bool": False, "float64": 0.0}.get(kind.split("[")[0], 0))
        found[name] = [default] * int(size[1]) if size else default
    return found


def _same(value):
    return "nan" if value != value else value


def _copied(record):
    return {k: list(v) if isinstance(v, list) else v for k, v in record.items()}
