"""What the connector decides, without I/O: offsets, ranges, admission, filters, the protocol."""
