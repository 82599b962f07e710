"""Sources: one module for each kind.  `base` defines the interface."""
