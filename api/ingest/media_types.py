"""Media types of the bodies that HTTP ingest accepts."""

NDJSON = "application/x-ndjson"
CSV = "text/csv"
ARROW = "application/vnd.apache.arrow.stream"
DEBEZIUM = "application/vnd.debezium.ndjson"
KEY, POPULATED = b"edged.key", b"edged.populated"
"""Metadata of a schema: the key of a table, its columns behind commas; and of a decoded batch, that
a table's first rows end with it."""
TYPES = (NDJSON, CSV, ARROW, DEBEZIUM)
