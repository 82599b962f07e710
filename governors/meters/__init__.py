"""Power and energy meters, one kind per module; `base` defines the interface."""
