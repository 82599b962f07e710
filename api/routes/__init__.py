"""The resources, one module each."""

from fastapi import APIRouter

from api.routes import (
    board,
    config,
    device,
    energy,
    events,
    governor,
    graphs,
    health,
    jobs,
    operations,
    operators,
    page,
    schema,
    states,
    store,
    streams,
    tuples,
    uplink,
)

ROUTERS: tuple[APIRouter, ...] = tuple(
    router
    for module in (
        health, schema, device, board, jobs, states, graphs, operations, streams, tuples, operators,
        governor, energy, store, uplink, events, config, page,
    )
    for router in module.ROUTERS
)  # fmt: skip
