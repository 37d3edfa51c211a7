"""The transaction coordinator's state machine: what becomes of a transactional id, without I/O.

`statuses` has the states and the legal transitions, `transaction` one id and its log record,
`init_producer_id`, `partitions` and `end_transaction` the rules of the requests, `state` joins them
to what the coordinator's runtime drives.
"""
