"""Fixtures of the energy side's tests."""

from tests.governors.owning import bench  # noqa: F401 - pytest finds it here
