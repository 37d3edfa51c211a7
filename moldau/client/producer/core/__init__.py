"""State machines of the producer, without I/O."""
