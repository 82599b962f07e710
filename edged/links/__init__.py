"""What both ends of a link share with neither socket nor store: rows to messages, messages to
pages.

`edged.sinks.edge` uses it on the beat's thread; `edged.uplink.links` sends the pages.
"""
