"""The daemon's traffic with the centre apart from pages: reports out, desired state in."""
