"""The child process of a `postgres` source: what talks to the server."""
