"""Transactions: their coordinator (KIP-98), and what partitions ask it (KIP-890).

`core` holds the state machine, `coordinator` joins it to the broker, `marker_sender` takes outcomes
to the partitions' leaders; `verification` asks coordinators on behalf of partitions.
"""
