"""The server's side of SASL without I/O: mechanisms, and the session that they lead to.

Bytes and the time go in, bytes or a refusal come out; nothing here reads a clock or makes a nonce.
"""
