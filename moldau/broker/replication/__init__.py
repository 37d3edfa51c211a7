"""What keeps the replicas of a broker alike: fetchers, changes of ISRs, directories.

Must not decide about one partition: `broker.partition` does. Invariant: everything here belongs to
the data loop.
"""
