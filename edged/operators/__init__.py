"""Operators, one file each; `base` defines the interface."""
