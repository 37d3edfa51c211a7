"""The second level of simulation: production nodes on a virtual clock, network and disk."""
