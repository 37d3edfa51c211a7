"""State machines of the consumer, without I/O."""
