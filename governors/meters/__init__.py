"""Where joules are read, one self-registering file a kind of sensor."""
