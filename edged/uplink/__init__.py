"""edged.uplink"""
