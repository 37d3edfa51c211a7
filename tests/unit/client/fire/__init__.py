"""The client's faces under fire: signals, cancellations, many threads, callbacks that raise."""
