"""The session of a connection without I/O: what may come when, and what it is answered.

Bytes and the time go in, an answer or a refusal comes out; nothing here reads a clock.
"""
