"""Fuzzing of every door that a peer reaches: `make fuzz`, and a seeded slice in `make test`."""
