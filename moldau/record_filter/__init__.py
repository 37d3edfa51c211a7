"""Filters of records: one condition about a record's fields, as `--where` takes it.

    wanted = compile_filter('value.user.id == 7 and timestamp >= "2026-07-01"')
    found = [record for record in records if wanted(record)]

`syntax` makes a tree of the text, `closures` a function of the tree; `choices` has the filters of
`--key` and `--grep`, which need no condition. The text may be hostile: a filter has no loops, calls
nothing, and is no longer, deeper or larger than `MAX_CHARACTERS`, `MAX_DEPTH` and `MAX_STEPS`.
docs/filters.md is its reference, docs/adr/0023 why it is our own. Must not read topics, and must
not know the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.first_use import at_first_use

if TYPE_CHECKING:
    from moldau.record_filter.choices import all_of as all_of
    from moldau.record_filter.choices import with_key as with_key
    from moldau.record_filter.choices import with_text as with_text
    from moldau.record_filter.closures import RecordFilter as RecordFilter
    from moldau.record_filter.closures import compile_filter as compile_filter
    from moldau.record_filter.syntax import FilterError as FilterError

at_first_use(
    globals(),
    """
    record_filter.choices: all_of with_key with_text
    record_filter.closures: RecordFilter compile_filter
    record_filter.syntax: FilterError
    """,
)
