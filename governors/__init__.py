"""The energy side: policies, actuators, meters, board profiles.  Knows nothing of tuples."""
