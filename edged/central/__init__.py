"""edged.central"""
