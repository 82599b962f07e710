"""Writes clocks and sleep settings of a board.  No other package does."""
