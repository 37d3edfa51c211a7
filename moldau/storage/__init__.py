"""The log on disk: segments, indexes, producers, recovery, retention; `cleaner` compacts."""
