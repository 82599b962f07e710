"""Operators, one file each; `base` defines what an operator is."""
