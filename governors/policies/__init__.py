"""What to do with clocks and sleep, sans-IO, one file a policy."""
