"""Tables that change: weighted rows found by key, in state that may exceed memory."""
