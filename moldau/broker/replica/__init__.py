"""One partition's whole life on a broker: its state machine, its log, its followers and fetches."""
