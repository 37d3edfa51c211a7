"""SASL: how a client, or a node, proves to a listener who it is. Both sides of each mechanism.

To add a mechanism: its module or package here, with `login` (the client's side) and `offer` (the
listener's) as `mechanism` describes them, and its row in `moldau.config.mechanisms`. Sessions, and
what becomes of a client that is accepted, are in `moldau.server.authentication`.
"""
