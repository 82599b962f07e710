"""The demo: a real wind farm's records through every part of edged, as separate processes.

sensors (one process a stream) ═► daemon ═► collector ─► landing ─► Spark ─► tables

places     directories, ports and files of one run
sensors    the two streams as their sensors would send them
truth      what DuckDB computes from the raw files, and the comparison
picture    the power curve
screen     what is shown while it runs
story      the run from beginning to end
"""
