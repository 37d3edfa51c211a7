"""The partition's state machine without I/O: roles, leader epochs, ISR, high watermark."""
