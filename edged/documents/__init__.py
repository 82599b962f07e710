"""Documents in TOML or JSON: typed readers, durations and sizes."""
