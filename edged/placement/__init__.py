"""Placement: the choice of the kernel that runs a join.

placement.py   kernel times of a machine, and the placer that chooses by energy and deadline
profile.py     the calibration files in the state directory
"""
