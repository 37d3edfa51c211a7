"""Consumer groups: who consumes what, and how far they have come.

`core` decides, `coordinator` carries it over to requests and to the log of `__consumer_offsets`.
"""
