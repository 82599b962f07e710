"""A table over HTTP: Debezium's events populate it, and follow it by key."""

import json

from api.ingest.media_types import DEBEZIUM, NDJSON
from tests.api.support import both, until

JOB = {
    "name": "plant",
    "promises": {"latency": "50ms"},
    "streams": {
        "readings": {
            "source": {"type": "http"},
            "columns": {"device": "int64", "time": "timestamp"},
            "time": "time",
            "max_ahead": "36500d",
        }
    },
    "tables": {
        "devices": {
            "source": {"type": "http"},
            "columns": {"id": "int64", "site": "string"},
            "key": ["id"],
            "changes": "debezium",
        }
    },
    "operators": {
        "located": {
            "type": "enrich", "input": "readings", "table": "devices",
            "on": ["device = id"], "how": "left",
        }
    },
    "sinks": {"out": {"type": "file", "input": "located", "path": "out", "format": "ndjson",
                      "rows": 1}},
}  # fmt: skip


def event(op, id, site="", snapshot="false"):
    """As PostgreSQL sends it by default: an old row has the key alone."""
    row = {"id": id, "site": site or None}
    parts = {"before": row, "after": None} if op == "d" else {"before": None, "after": row}
    return json.dumps({"op": op, **parts, "source": {"snapshot": snapshot}})


def test_a_snapshot_over_http_ends_a_population_and_events_by_key_follow(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with both(tmp_path, JOB) as (_, api), api.client() as client:

        def post(stream, kind, lines, key):
            body = "\n".join(lines)
            headers = {"Content-Type": kind, "Idempotency-Key": key}
            return client.post(f"/v1/streams/{stream}/tuples", content=body, headers=headers)

        def reading(device):
            return json.dumps({"device": device, "time": f"2026-11-21T09:00:0{device}Z"})

        def sites():
            files = sorted((tmp_path / "out").glob("*.ndjson"))
            rows = [json.loads(line) for f in files for line in f.read_text().splitlines()]
            return [(row["device"], row["site"]) for row in rows]

        answer = post("devices", DEBEZIUM, [event("r", 1, "north"), '{"op": "d"}'], "bad")
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["where"] == "line 2"
        first = [event("r", i, f"site {i}") for i in range(5)]
        assert post("devices", DEBEZIUM, first, "first").status_code == 202
        last = [event("r", 5, "site 5", "last")]
        assert post("devices", DEBEZIUM, last, "last").json()["rows"] == 1
        assert post("devices", DEBEZIUM, last, "last").json()["replayed"] is True
        changes = [event("u", 1, "new"), event("d", 2), event("c", 6, "site 6")]
        assert post("devices", DEBEZIUM, changes, "changes").status_code == 202
        sent = [reading(i) for i in (0, 1, 2, 5, 6)]
        assert post("readings", NDJSON, sent, "readings").status_code == 202
        until(lambda: len(sites()) == 5)
        assert sites() == [(0, "site 0"), (1, "new"), (2, None), (5, "site 5"), (6, "site 6")]
