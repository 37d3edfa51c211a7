"""The blocking face: the same names, for threads and notebooks."""
