"""The deterministic simulator: one process, a virtual clock, one seed (docs/testing.md)."""
