"""edged.store"""
