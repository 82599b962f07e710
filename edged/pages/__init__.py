"""Pages: the format (its spec is `format`'s docstring), the reader for Arrow, and the writer."""
