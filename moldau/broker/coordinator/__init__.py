"""What group and transaction coordinators have in common: state machines on the partitions of an
internal topic, loaded where the partition is led, answering when their records are committed.
"""
