"""Settings of all tests: hypothesis judges results, never the speed of a busy machine."""

from hypothesis import HealthCheck, settings

settings.register_profile("edged", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("edged")
