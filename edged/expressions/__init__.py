"""SQL scalar expressions in DuckDB's dialect, compiled to one kernel per operator.

    SQL ─parse─► sqlglot's tree ─bind─► typed tree ─codegen─► module ─cache─► kernel ─program─► rows

`program` is what operators use.  This package's `__init__` imports nothing, since generated
modules import `runtime*` in a child process that should start fast.
"""
