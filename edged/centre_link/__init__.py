"""centre_link"""
