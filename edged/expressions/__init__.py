"""SQL scalar expressions in DuckDB's dialect, compiled to one kernel per operator.

    SQL ─parse─► sqlglot's tree ─bind─► typed tree ─codegen─► module ─cache─► kernel ─program─► rows

Operators use `program`.  This package's `__init__` imports nothing, because generated modules
import `runtime*` in a child process that must start fast.
"""
