"""State machines on the partitions of internal topics: groups and transactions run on it."""
