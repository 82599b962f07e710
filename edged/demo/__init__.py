"""edged.demo"""
