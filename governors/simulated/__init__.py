"""Simulated boards: a tree of files that behaves like the kernel's."""
