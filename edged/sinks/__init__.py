"""Sinks, one file each; `base` defines what a sink is."""
