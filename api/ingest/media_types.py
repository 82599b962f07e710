"""Media types of the bodies that HTTP ingest accepts."""

NDJSON = "application/x-ndjson"
CSV = "text/csv"
ARROW = "application/vnd.apache.arrow.stream"
DEBEZIUM = "application/vnd.debezium.ndjson"
TYPES = (NDJSON, CSV, ARROW, DEBEZIUM)
