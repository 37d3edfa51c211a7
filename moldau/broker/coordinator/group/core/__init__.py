"""The state machines of groups and committed offsets: no I/O, no clock, no randomness."""
