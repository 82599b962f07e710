"""The arithmetic: functions on arrays, compiled by numba.  No I/O, no config, no state."""
