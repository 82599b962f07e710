"""Sending rows to edged: the producer's side of the wire; see `frames` for what it is."""
