"""`python -m edged`: the same as the `edged` command."""

from edged.cli import main

main()
