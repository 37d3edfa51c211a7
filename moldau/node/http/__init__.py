"""The HTTP listener: metrics, health, JSON; who may ask, and what clients may take."""
