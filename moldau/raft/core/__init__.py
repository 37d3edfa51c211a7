"""The quorum as a state machine: no tasks, sockets, files, clocks or dice (see effects.py)."""
