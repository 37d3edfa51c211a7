"""Where a follower cuts its log: the histories of KIP-101 and KIP-279, and random ones."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.broker.replica.core.truncation import LogCut, cut_for_divergence, cut_out_of_range
from moldau.storage.checkpoints import EpochStartOffset
from moldau.storage.leader_epoch_cache import LeaderEpochCache
from tests.storage.simulated_filesystem import SimulatedFilesystem

MAX_EXCHANGES = 100


@dataclass
class History:
    """A log, as the leader epoch of every record in it. `epochs_led` are those in which the replica
    led and wrote nothing yet: its cache has an entry at the end of the log.
    """

    records: list[int] = field(default_factory=list)
    led_without_records: int | None = None

    @property
    def end(self) -> int:
        return len(self.records)

    def cache(self) -> LeaderEpochCache:
        cache = LeaderEpochCache(SimulatedFilesystem(), "/nowhere")
        for offset, epoch in enumerate(self.records):
            if not offset or self.records[offset - 1] != epoch:
                cache.assign(epoch, offset)
        if self.led_without_records is not None:
            cache.assign(self.led_without_records, self.end)
        return cache

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        return self.cache().end_offset_for(epoch, self.end)

    def cut(self, offset: int) -> None:
        if offset <= self.end:
            del self.records[offset:]
            self.led_without_records = None

    @property
    def last_epoch(self) -> int:
        return self.cache().latest_epoch


def exchange(follower: History, leader: History) -> list[str]:
    """Fetch, and cut as the answers say, until the leader has records for the follower; what
    happened.
    """
    story = []
    for _ in range(MAX_EXCHANGES):
        end, last_epoch = follower.end, follower.last_epoch
        if last_epoch >= 0:
            epoch, epoch_end = leader.end_offset_for(last_epoch)
            if epoch < 0:
                story.append("unknown epoch")
                return story
            if epoch < last_epoch or epoch_end < end:
                cut = cut_for_divergence(
                    epoch,
                    epoch_end,
                    leader_start_offset=0,
                    log_start_offset=0,
                    log_end_offset=end,
                    end_offset_for_epoch=follower.end_offset_for,
                )
                assert cut is not None
                assert not cut.begins_empty
                assert cut.offset <= end
                follower.cut(cut.offset)
                story.append(f"cut to {cut.offset}")
                assert (follower.end, follower.last_epoch) < (end, last_epoch) or (
                    follower.end == end and follower.last_epoch < last_epoch
                ), "an exchange that changes nothing would go on for ever"
                continue
        if end > leader.end:
            cut_range = cut_out_of_range(
                0, leader.end, log_start_offset=0, log_end_offset=end, is_blank=False
            )
            assert cut_range == LogCut(leader.end, begins_empty=leader.end == 0)
            follower.cut(leader.end)
            story.append(f"out of range, cut to {leader.end}")
            continue
        return story
    raise AssertionError(f"no end after {MAX_EXCHANGES} exchanges: {story[:5]}")


def test_kip_101_records_below_a_stale_high_watermark_are_kept() -> None:
    # The follower has everything its leader has; only its high watermark lags behind. Cutting to
    # that would lose m2 when it is elected next.
    follower = History([0, 0])
    assert exchange(follower, History([0, 0], led_without_records=1)) == []
    assert follower.records == [0, 0]


def test_kip_101_replicas_that_diverged_after_a_double_failure() -> None:
    # A wrote m2 in epoch 0 and died; B came up with m1 only, led epoch 1 and wrote m3 there.
    follower = History([0, 0])
    leader = History([0, 1])
    assert exchange(follower, leader) == ["cut to 1"]
    assert follower.records == [0]


def test_kip_279_fast_leader_change() -> None:
    # Both led in turn, quickly: the follower's newest epoch is unknown to the leader, and so is
    # the leader's to the follower. The largest epoch in common is found, not the next best offset.
    leader = History([0] * 20 + [2] * 5)
    follower = History([0] * 20 + [1] * 6)
    assert exchange(follower, leader) == ["cut to 20"]
    assert follower.records == [0] * 20


def test_kip_279_several_epochs_that_the_leader_never_had() -> None:
    leader = History([1] * 10 + [4] * 5 + [8] * 5)
    follower = History([1] * 12 + [3] * 2 + [5] * 2 + [7] * 2)
    story = exchange(follower, leader)
    assert follower.records == [1] * 10
    assert story == ["cut to 14", "cut to 10"]


def test_an_epoch_that_the_follower_led_without_writing() -> None:
    follower = History([3] * 10, led_without_records=5)
    assert exchange(follower, History([3] * 10 + [6] * 2)) == ["cut to 10"]
    assert (follower.end, follower.last_epoch) == (10, 3)


def test_an_unclean_leader_that_has_less() -> None:
    follower = History([0] * 10 + [1] * 10)
    assert exchange(follower, History([0] * 5, led_without_records=2)) == ["cut to 5"]
    assert follower.records == [0] * 5


def test_an_unclean_leader_that_has_nothing() -> None:
    follower = History([0] * 10 + [1] * 10)
    exchange(follower, History([], led_without_records=2))
    assert follower.records == []


def test_a_follower_that_has_nothing() -> None:
    follower = History()
    assert exchange(follower, History([0] * 5)) == []


def divergence(
    epoch: int,
    end_offset: int,
    own: tuple[int, int],
    own_epoch: tuple[int, int],
    leader_start_offset: int = 0,
) -> LogCut | None:
    return cut_for_divergence(
        epoch,
        end_offset,
        leader_start_offset=leader_start_offset,
        log_start_offset=own[0],
        log_end_offset=own[1],
        end_offset_for_epoch=lambda _epoch: own_epoch,
    )


def test_a_log_without_epochs_is_cut_where_the_leader_says() -> None:
    assert divergence(3, 7, (0, 10), (-1, -1)) == LogCut(7)


@pytest.mark.parametrize(
    ("epoch", "end_offset", "own_epoch", "cut_at"),
    [
        (0, 0, (-1, -1), 0),
        (0, 7, (-1, -1), 7),
        (3, 12, (-1, -1), 10),
        (3, 7, (0, 0), 0),
        (3, 7, (0, 5), 5),
        (3, 7, (3, 9), 7),
        (3, 12, (3, 11), 10),
    ],
)
def test_the_log_is_cut_where_the_shorter_one_leaves_the_common_epoch(
    epoch: int, end_offset: int, own_epoch: tuple[int, int], cut_at: int
) -> None:
    assert divergence(epoch, end_offset, (0, 10), own_epoch) == LogCut(cut_at)


def test_an_answer_that_says_nothing_cuts_nothing() -> None:
    for epoch, end_offset in ((-1, 5), (3, -1), (-1, -1)):
        assert divergence(epoch, end_offset, (0, 10), (2, 3)) is None


def test_where_nothing_is_left_the_log_begins_where_the_leaders_does() -> None:
    # Deleted up to 10, and the leader parts from us before: what is left of us is nothing.
    assert divergence(3, 7, (10, 15), (-1, -1)) == LogCut(0, begins_empty=True)
    assert divergence(3, 10, (10, 15), (-1, -1)) == LogCut(0, begins_empty=True)
    assert divergence(3, 11, (10, 15), (-1, -1)) == LogCut(11)
    # The leader has nothing before that point either, or did not say where it begins.
    assert divergence(3, 7, (10, 15), (-1, -1), leader_start_offset=7) == LogCut(7)
    assert divergence(3, 7, (10, 15), (-1, -1), leader_start_offset=-1) == LogCut(7)


def out_of_range(
    leader: tuple[int, int], own: tuple[int, int], *, is_blank: bool = False
) -> LogCut | None:
    return cut_out_of_range(
        *leader, log_start_offset=own[0], log_end_offset=own[1], is_blank=is_blank
    )


def test_out_of_range() -> None:
    assert out_of_range((0, 5), (0, 8)) == LogCut(5)
    assert out_of_range((10, 20), (0, 8)) == LogCut(10, begins_empty=True)
    assert out_of_range((0, 20), (0, 8)) is None
    assert out_of_range((8, 8), (0, 8)) is None
    assert out_of_range((5, 5), (0, 8)) == LogCut(5), "the leader has deleted all that it had"
    for nonsense in ((-1, 20), (10, 5), (-1, -1)):
        assert out_of_range(nonsense, (0, 8)) is None


def test_a_log_of_which_nothing_is_left_begins_where_the_leader_begins() -> None:
    """Empty at the leader's end it would pass for one that has all before it (simulation, seed
    1250067): deleted up to 285, its tail lost, and a leader elected uncleanly that ends at 95.
    """
    assert out_of_range((0, 95), (285, 285), is_blank=True) == LogCut(0, begins_empty=True)
    assert out_of_range((0, 95), (285, 300)) == LogCut(0, begins_empty=True)
    assert out_of_range((0, 95), (95, 300)) == LogCut(0, begins_empty=True)
    assert out_of_range((0, 400), (285, 285), is_blank=True) == LogCut(0, begins_empty=True)
    assert out_of_range((285, 400), (285, 285), is_blank=True) is None


@st.composite
def two_histories(draw: st.DrawFn) -> tuple[History, History]:
    """What two replicas can come to: they agree up to somewhere, and then each wrote epochs that
    the other never had (an epoch has one leader, so both never write in the same one after they
    parted). The leader's own epoch is the newest.
    """
    epochs = sorted(draw(st.sets(st.integers(0, 30), max_size=8)))
    shared_count = draw(st.integers(0, len(epochs)))
    shared: list[int] = []
    for epoch in epochs[:shared_count]:
        shared += [epoch] * draw(st.integers(1, 4))
    logs: list[list[int]] = [list(shared), list(shared)]
    # Where they part, the one that had led the last shared epoch may have more of it.
    if shared:
        logs[draw(st.integers(0, 1))] += [shared[-1]] * draw(st.integers(0, 3))
    for epoch in epochs[shared_count:]:
        logs[draw(st.integers(0, 1))] += [epoch] * draw(st.integers(1, 4))
    led_by_follower = draw(st.sampled_from([None, 31]))
    return History(logs[0], led_by_follower), History(logs[1], led_without_records=32)


def common_prefix(one: History, other: History) -> int:
    length = 0
    for mine, theirs in zip(one.records, other.records, strict=False):
        if mine != theirs:
            break
        length += 1
    return length


@given(two_histories())
@settings(max_examples=500, deadline=None)
def test_after_the_exchange_the_follower_has_what_both_had_and_no_more(
    histories: tuple[History, History],
) -> None:
    follower, leader = histories
    before = list(follower.records)
    common = common_prefix(follower, leader)
    exchange(follower, leader)
    assert follower.records == before[: follower.end]
    assert follower.records == leader.records[: follower.end], "the logs still differ"
    assert follower.end == common, "records that both had are gone"


def test_real_cache_entries_are_what_the_model_makes() -> None:
    assert History([1, 1, 4], led_without_records=6).cache().entries == [
        EpochStartOffset(1, 0),
        EpochStartOffset(4, 2),
        EpochStartOffset(6, 3),
    ]
