"""Meters, one file each; `base` defines what a meter is."""
