"""Plug-ins: installed packages, broken ones, and the examples of docs/extending.md."""
