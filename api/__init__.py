"""The control plane: a REST API in its own process that speaks only to the daemon's control
door."""
