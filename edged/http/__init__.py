"""HTTP parts that the API and the collector share: bearer tokens, request timeouts."""
