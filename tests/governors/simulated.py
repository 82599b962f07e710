"""What the tests of the simulated board share."""

POLICY = "/sys/devices/system/cpu/cpufreq/policy0"
GPU = "/sys/class/devfreq/17000000.gpu"
SECOND = 1_000_000


def pinned(board, khz):
    """All clusters at one clock, written as an actuator would."""
    for cluster in board.profile.clusters:
        at = f"/sys/devices/system/cpu/cpufreq/{cluster.name[4:]}"
        parts = ["max", "min"] if khz > board.sysfs.read_int(f"{at}/scaling_max_freq") else []
        for part in parts or ["min", "max"]:
            board.sysfs.write(f"{at}/scaling_{part}_freq", str(khz))
    return board
