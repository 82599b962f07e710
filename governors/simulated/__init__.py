"""Boards that are not there: a tree of files that behaves as the kernel does."""
