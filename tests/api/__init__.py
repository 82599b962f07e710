"""The API as a process of its own, beside a real daemon."""
