"""Tests of `edged.pages`."""
