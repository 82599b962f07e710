"""The window join's family: see `edged.joins.base`."""
