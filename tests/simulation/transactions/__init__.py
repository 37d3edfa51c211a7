"""Whole clusters with group and transaction coordinators under simulated faults.

Controllers, brokers with data, disks and network are those of `tests.simulation.replication`. Here
come the coordinators' topics, transactional producers, groups that consume, transform and produce,
read_committed readers, requests that arrive late or twice, and what transactions promise.
"""
