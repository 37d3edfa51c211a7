"""The transaction coordinator's state machine: what becomes of a transactional id, without I/O."""
