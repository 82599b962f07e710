"""Tests of the energy side."""
