"""Pages: the format (specified in `format`'s docstring), the reader for Arrow, and the writer."""
