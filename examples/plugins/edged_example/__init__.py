"""Plug-ins for edged: one of each kind."""
