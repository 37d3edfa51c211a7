"""Transactions: their coordinator (KIP-98), and what partitions ask it (KIP-890)."""
