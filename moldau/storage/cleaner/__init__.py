"""Log compaction: of each key the newest record stays, offsets never change.

`log_cleaner` decides when and swaps results in, on the loop; `workers` is the port behind which the
work on files is done, by `child` in its own process (`cleaning`, `offset_map`, `batch_filter`,
`cleaned_segment`). Sources: KIP-58, KIP-98, KIP-354, KIP-534.
"""
