"""How far a follower's log agrees with its leader's.

Owns the arithmetic of where to cut, from what both know of their leader epochs. Knows no log:
histories come in as numbers. Invariants: what is cut is not in the leader's log; the high watermark
never decides (it lags behind what is committed, and cutting by it loses acknowledged records:
KIP-101); every exchange that ends in a cut leaves the follower with an older epoch or a shorter
log, so that exchanges end. Sources: KIP-101, KIP-279, KIP-595.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

EndOffsetForEpoch = Callable[[int], tuple[int, int]]
"""`(leader epoch, end offset)` of the largest epoch <= the given one in the local log; (-1, -1)
when nothing is known."""


class LogCut(NamedTuple):
    """Cut the local log back to `offset`, or (`begins_empty`) remove all of it and begin there."""

    offset: int
    begins_empty: bool = False


def cut_for_divergence(
    diverging_epoch: int,
    diverging_end_offset: int,
    *,
    leader_start_offset: int,
    log_start_offset: int,
    log_end_offset: int,
    end_offset_for_epoch: EndOffsetForEpoch,
) -> LogCut | None:
    """Where to cut when the leader says that the logs part.

    The leader's log has the records of `diverging_epoch`, the largest one up to the follower's last
    fetched epoch, up to `diverging_end_offset`; behind that come epochs unknown to the follower. If
    the follower has that epoch too, the logs agree up to where the shorter one leaves it. If not,
    all later epochs of the follower are foreign to the leader, and the next exchange begins with
    the epoch before them.

    Where nothing of the follower's log would be left and the leader has what comes before, the
    follower begins where the leader begins (-1 when it did not say where).

    Returns the cut, at most at `log_end_offset`; None for an answer that says nothing.
    """
    if diverging_epoch < 0 or diverging_end_offset < 0:
        return None
    offset = min(diverging_end_offset, log_end_offset)
    own_epoch, own_end_offset = end_offset_for_epoch(diverging_epoch)
    if own_epoch >= 0:
        offset = min(offset, own_end_offset)
    if 0 <= leader_start_offset < offset <= log_start_offset:
        return LogCut(leader_start_offset, begins_empty=True)
    return LogCut(offset)


def cut_out_of_range(
    leader_start_offset: int,
    leader_end_offset: int,
    *,
    log_start_offset: int,
    log_end_offset: int,
    is_blank: bool,
) -> LogCut | None:
    """Where to cut when the follower's end offset is beyond, or before, the leader's log.

    Behind the leader's end (after an unclean election) the log is cut to it; the next fetch shows
    whether the rest agrees. Where nothing would be left, the follower begins where the leader
    begins: an empty log at the leader's end would pass for one that has all before it. `is_blank`:
    the log is empty and knows no leader epoch, so that nothing shows what it once had below its
    end.

    Returns the cut; None when the offset is within the leader's log after all, or the answer is
    nonsense.
    """
    if not 0 <= leader_start_offset <= leader_end_offset:
        return None
    is_beyond = log_end_offset > leader_end_offset
    if is_beyond and leader_end_offset > log_start_offset and not is_blank:
        return LogCut(leader_end_offset)
    if is_beyond or log_end_offset < leader_start_offset:
        return LogCut(leader_start_offset, begins_empty=True)
    if is_blank and log_end_offset > leader_start_offset:
        return LogCut(leader_start_offset, begins_empty=True)
    return None
