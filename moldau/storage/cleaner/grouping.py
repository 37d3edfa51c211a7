"""Which neighbouring segments become one when they are rewritten.

Owns: the rule. Must not: look at files.
Invariant: a group's segments follow each other, every segment is in exactly one group, and the new
segment can number all offsets of its group in 31 bits, whatever of them stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from moldau.storage.cleaner.job import SourceSegment
from moldau.storage.segment import MAX_RELATIVE_OFFSET

MAX_GROUP_SEGMENTS = 256
"""Segments that one replaces at most: they are renamed in one go, while nobody else is served."""


def group_segments(
    segments: Sequence[SourceSegment],
    index_bytes: Sequence[int],
    *,
    max_bytes: int,
    max_index_bytes: int,
) -> list[list[SourceSegment]]:
    """Neighbours as long as their bytes, and the larger of their indexes (`index_bytes`, one per
    segment), fit into one segment as the topic's settings have it now.

    A segment that is too large by itself is a group by itself.
    """
    groups: list[list[SourceSegment]] = []
    size_bytes = index_size_bytes = 0
    for segment, its_index_bytes in zip(segments, index_bytes, strict=True):
        size_bytes += segment.size_bytes
        index_size_bytes += its_index_bytes
        if (
            groups
            and size_bytes <= max_bytes
            and index_size_bytes <= max_index_bytes
            and segment.end_offset - 1 - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET
            and len(groups[-1]) < MAX_GROUP_SEGMENTS
        ):
            groups[-1].append(segment)
        else:
            groups.append([segment])
            size_bytes, index_size_bytes = segment.size_bytes, its_index_bytes
    return groups
