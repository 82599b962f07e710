"""edged.beat"""
