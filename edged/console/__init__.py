"""Shared parts of commands: options and figures."""
