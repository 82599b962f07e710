"""The control plane, in its own process.  Speaks to the daemon's control door only."""
