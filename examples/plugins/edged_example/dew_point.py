"""`dew_point(temperature_c, humidity)`: the Magnus formula, humidity in percent; result in °C."""

from math import log

from edged.plugin import function


@function("dew_point", arguments=("DOUBLE", "DOUBLE"), returns="DOUBLE")
def dew_point(temperature_c: float, humidity: float) -> float:
    gamma = log(humidity / 100.0) + 17.62 * temperature_c / (243.12 + temperature_c)
    return 243.12 * gamma / (17.62 - gamma)
