"""The demo: a real wind farm's records through every part of edged, as separate processes.

sensors (one process for each stream) ═► daemon ═► collector ─► landing ─► Spark ─► tables

sensors    sends the two streams, one connection for each turbine
truth      DuckDB's tables from the raw files, and the comparison
picture    the figure of the power curve
screen     the live display and the final tables
story      the run from start to end
"""
