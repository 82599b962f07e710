"""edged.job"""
