"""Who in a classic group gets which partitions (KIP-54, KIP-429, KIP-881)."""
