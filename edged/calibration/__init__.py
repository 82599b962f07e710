"""`edged calibrate`: measures the kernels of a join, and their power at each clock of the board.

join_kernels.py       time of every kernel over sizes of window and beat
join_data.py          the input streams, and the reference result
join_measure.py       the driver that measures a kernel or the whole operator
join_roofline.py      the roofline of `edged bench join`
operating_points.py   time and power of a kernel at each operating point (OPP)
workloads.py          the beats that run at each operating point
power_meters.py       meters, clocks and temperatures during a calibration
site.py               the calibrated board: real, a fixture tree, or simulated
plot.py               the result as text and as a figure
"""
