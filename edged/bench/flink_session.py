"""Flink's side of the equipment job: a local cluster in this process, for Flink's own Python.

`python -I flink_session.py CONFIG` plans the job of the file CONFIG once, copies it for each of
`outputs`, and says `{"planned": s}`.  For each line on standard input it submits all jobs and says
at their end `{"ended": s}` or `{"error": text}`.  A job has a slot of its own.  The module imports
nothing of edged.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Serve the runs that are asked for."""
    from pyflink.java_gateway import get_gateway

    given = json.loads(Path(sys.argv[1]).read_text())
    jvm = get_gateway().jvm
    began = time.monotonic()
    settings = jvm.org.apache.flink.configuration.Configuration()
    for key, value in given["settings"].items():
        settings.setString(key, value)
    cluster = _cluster(jvm, settings, len(given["outputs"]))
    first = _planned(jvm, settings, given["tables"], given["inserts"])
    graphs = _copies(jvm, first, given["outputs"])
    _say({"planned": time.monotonic() - began})
    for _ in sys.stdin:
        _say(_run(jvm, cluster, graphs))
    os._exit(0)  # the gateway's threads do not end


def _cluster(jvm: Any, settings: Any, slots: int) -> Any:
    minicluster = jvm.org.apache.flink.runtime.minicluster
    builder = minicluster.MiniClusterConfiguration.Builder().setConfiguration(settings)
    builder = builder.setNumTaskManagers(1).setNumSlotsPerTaskManager(slots)
    cluster = minicluster.MiniCluster(builder.build())
    cluster.start()
    return cluster


def _planned(jvm: Any, settings: Any, statements: list[str], inserts: list[str]) -> Any:
    """The graph of a job, from its tables and inserts."""
    flink = jvm.org.apache.flink
    streams = flink.streaming.api.environment.StreamExecutionEnvironment
    stream = streams.createLocalEnvironment(1, settings)
    kind = flink.table.api.EnvironmentSettings.newInstance().inStreamingMode()
    made = kind.withConfiguration(settings).build()
    tables = flink.table.api.bridge.java.StreamTableEnvironment.create(stream, made)
    for statement in statements:
        tables.executeSql(statement)
    parsed = jvm.java.util.ArrayList()
    for insert in inserts:
        parsed.addAll(tables.getParser().parse(insert))
    return stream.generateStreamGraph(tables.getPlanner().translate(parsed)).getJobGraph()


def _copies(jvm: Any, graph: Any, outputs: list[str]) -> list[Any]:
    """The graph for each path of outputs: all have the length of the first, which the graph
    writes to, so that its bytes can name another."""
    tool = jvm.org.apache.flink.util.InstantiationUtil
    loader = jvm.java.lang.ClassLoader.getSystemClassLoader()
    data, first = tool.serializeObject(graph), outputs[0].encode()
    if first not in data or len({len(path) for path in outputs}) > 1:
        raise ValueError(f"the graph does not name {outputs[0]}, or paths differ in length")
    return [
        tool.deserializeObject(data.replace(first, path.encode()), loader) for path in outputs
    ]  # fmt: skip


def _run(jvm: Any, cluster: Any, graphs: list[Any]) -> dict[str, Any]:
    """Submit all jobs once more, and wait for their end."""
    began, ids = time.monotonic(), []
    for graph in graphs:
        graph.setJobID(jvm.org.apache.flink.api.common.JobID())
        ids.append(cluster.submitJob(graph).get().getJobID())
    for job in ids:
        result = cluster.requestJobResult(job).get()
        if not result.isSuccess():
            return {"error": _cause(result.getSerializedThrowable().get())}
    return {"ended": time.monotonic() - began}


def _cause(problem: Any) -> str:
    """The last cause in a stack trace."""
    lines = problem.getFullStringifiedStackTrace().splitlines()
    return str(next((line for line in reversed(lines) if "Caused by" in line), lines[0]))


def _say(event: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
