"""Tests of `edged.sinks`."""
