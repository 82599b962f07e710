"""The only code that writes a board: clocks, sleep, and who owns them."""
