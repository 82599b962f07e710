"""edged.pages"""
