"""Names of a job's saved arrays: `streams/<id>/…`, `tables/<id>/…`, `operators/<id>/…`,
`sinks/<id>/…`."""

from __future__ import annotations

from edged.data.flow import State


def put_arrays(arrays: State, prefix: str, state: State) -> None:
    """Add the arrays of `state` under `prefix/`."""
    for key, value in state.items():
        arrays[f"{prefix}/{key}"] = value


def arrays_under(arrays: State, prefix: str) -> State:
    """The arrays whose names start with `prefix/`, without that prefix."""
    return {k[len(prefix) + 1 :]: v for k, v in arrays.items() if k.startswith(prefix + "/")}
