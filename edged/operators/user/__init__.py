"""Operators that users write: where their code comes from, and what it declares."""
