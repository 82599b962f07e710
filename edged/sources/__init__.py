"""Sources, one file each; `base` defines what a source is."""
