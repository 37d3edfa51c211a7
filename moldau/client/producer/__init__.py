"""The producer: accumulator, partitioners, sending, transactions."""
