"""edged.bench"""
