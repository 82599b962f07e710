"""edged: an energy-aware runtime for streams of small tuples on edge devices.

The way of a tuple, which is also the way through this package:

    sources → staging → beat (operators) → sinks → pages → store → uplink ═► central → Spark
"""

__version__ = "0.1.0"
