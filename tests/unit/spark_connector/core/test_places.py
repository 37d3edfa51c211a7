"""Places to start and end, and the offsets they mean."""

from __future__ import annotations

from uuid import UUID

import pytest

from moldau.protocol.types import TopicPartition
from moldau.spark_connector.core.offsets import AtOffsets, AtTime, AtTimes, Place, Wanted
from moldau.spark_connector.errors import OffsetsNotFound

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
BEGINNINGS, ENDS = {P0: 5, P1: 0}, {P0: 50, P1: 10}


def resolve(selection, first_by_time=None, **more):
    wanted = Wanted(selection, "startingOffsets", **more)
    return wanted.resolve([P0, P1], BEGINNINGS, ENDS, first_by_time or {})


def test_places():
    assert resolve(Place.EARLIEST) == BEGINNINGS
    assert resolve(Place.LATEST) == ENDS
    assert resolve(AtOffsets({P0: -2, P1: -1})) == {P0: 5, P1: 10}
    assert resolve(AtOffsets({P0: 7, P1: 3})) == {P0: 7, P1: 3}


def test_times_are_asked_for_every_partition():
    assert Wanted(AtTime(9), "o").times([P0, P1]) == {P0: 9, P1: 9}
    assert Wanted(AtTimes({P0: 1, P1: 2}), "o").times([P0, P1]) == {P0: 1, P1: 2}
    assert Wanted(Place.LATEST, "o").times([P0, P1]) == {}
    assert resolve(AtTime(9), {P0: 11, P1: 4}) == {P0: 11, P1: 4}


def test_no_record_young_enough():
    with pytest.raises(OffsetsNotFound, match=r"t-1 has no record at or after 9 .*=latest"):
        resolve(AtTime(9), {P0: 11, P1: None})
    assert resolve(AtTime(9), {P0: 11, P1: None}, latest_when_not_found=True) == {P0: 11, P1: 10}


@pytest.mark.parametrize("kind", [AtOffsets, AtTimes])
def test_every_partition_must_be_named_and_no_other(kind):
    with pytest.raises(OffsetsNotFound, match=r"nothing for t-1"):
        resolve(kind({P0: 1}), {P0: 1, P1: 1})
    other = TopicPartition("u", 3)
    with pytest.raises(OffsetsNotFound, match=r"u-3 is not read, or does not exist"):
        resolve(kind({P0: 1, P1: 1, other: 1}), {P0: 1, P1: 1})


def test_many_missing_partitions_are_counted():
    wanted = Wanted(AtOffsets({P0: 1}), "startingOffsets")
    many = [TopicPartition("t", number) for number in range(30)]
    with pytest.raises(OffsetsNotFound, match=r"t-10 and 19 more"):
        wanted.resolve(many, {}, {}, {})
    with pytest.raises(OffsetsNotFound, match=r"nothing for t-1, .*t-10 and 1 more"):
        wanted.resolve(many[:12], {}, {}, {})
    with pytest.raises(OffsetsNotFound, match=r"nothing for t-1, .*t-10\. In offsets"):
        wanted.resolve(many[:11], {}, {}, {})


def test_offsets_in_a_topic_that_has_gone_are_known_by_its_id():
    """Earliest and latest are places in any topic."""
    seen, now = UUID(int=1), UUID(int=2)
    place = AtOffsets({P0: 0, P1: -1, TopicPartition("u", 0): 7}, {"t": seen, "u": seen})
    assert place.in_former_topics({"t": now, "u": seen}) == {P0}
    assert place.in_former_topics({"u": now}) == {TopicPartition("u", 0)}
    assert AtOffsets({P0: 0}).in_former_topics({"t": now}) == frozenset()


def test_what_another_look_may_find_elsewhere():
    assert Wanted(Place.LATEST, "o").is_volatile()
    assert Wanted(AtOffsets({P0: 1, P1: -1}), "o").is_volatile()
    assert Wanted(AtTime(9), "o", latest_when_not_found=True).is_volatile()
    assert not Wanted(AtTime(9), "o").is_volatile()
    assert not Wanted(Place.EARLIEST, "o").is_volatile()
    assert not Wanted(AtOffsets({P0: 1, P1: -2}), "o").is_volatile()
