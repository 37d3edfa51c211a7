"""The checker finds the damage that is done to lists, and to logs that a real node keeps."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final

import pytest
from confluent_kafka import Producer

from moldau.testing import Cluster
from tests.interop.topics import TopicMaker
from tests.kit.dice import drawn_seed
from tests.system.replication.checker import (
    Findings,
    ReadRecord,
    SentLedger,
    check,
    sequence_in,
    value_of,
)
from tests.system.replication.load import end_offsets, here, read_to

KEYS: Final = (b"a", b"b", b"c")
PARTITIONS: Final = 2
COUNT: Final = 30
READ_DEADLINE_S: Final = 60.0

Damage = Callable[[list[ReadRecord], random.Random], None]


def sent_and_kept(dice: random.Random) -> tuple[SentLedger, list[ReadRecord]]:
    """What a log without faults looks like; every third record was not acknowledged."""
    ledger, log = SentLedger(), []
    next_offsets = [0] * PARTITIONS
    for number, key in enumerate(KEYS):
        ledger.add_key(key, number % PARTITIONS)
    for _ in range(COUNT):
        key = dice.choice(KEYS)
        partition, sequence = ledger.partitions[key], ledger.hand(key)
        offset = next_offsets[partition]
        next_offsets[partition] += 1
        log.append(ReadRecord(partition, offset, key, value_of(key, sequence)))
        if sequence % 3 == 2:
            ledger.refuse(key, sequence, "_MSG_TIMED_OUT")
        else:
            ledger.acknowledge(key, sequence, partition, offset)
    return ledger, log


def kinds(findings: Findings) -> set[str]:
    return {name for name, found in findings.by_kind().items() if found}


def renumbered(log: list[ReadRecord]) -> list[ReadRecord]:
    """As a log would number the same records."""
    next_offsets = [0] * PARTITIONS
    result = []
    for record in log:
        result.append(record._replace(offset=next_offsets[record.partition]))
        next_offsets[record.partition] += 1
    return result


def is_acknowledged(record: ReadRecord) -> bool:
    sequence = sequence_in(record.key, record.value)
    return sequence is not None and sequence % 3 != 2


def pick(log: list[ReadRecord], dice: random.Random, *, acknowledged: bool = True) -> int:
    places = [place for place, each in enumerate(log) if is_acknowledged(each) is acknowledged]
    return dice.choice(places)


def drop(log: list[ReadRecord], dice: random.Random) -> None:
    del log[pick(log, dice)]


def repeat(log: list[ReadRecord], dice: random.Random) -> None:
    """At the end, under its own offset, as a retry that was not recognised."""
    record = log[dice.randrange(len(log))]
    ends = [each.offset for each in log if each.partition == record.partition]
    log.append(record._replace(offset=max(ends) + 1))


def read_twice(log: list[ReadRecord], dice: random.Random) -> None:
    place = dice.randrange(len(log))
    log.insert(place, log[place])


def swap(log: list[ReadRecord], dice: random.Random) -> None:
    """Two records of one key change places, and keep the offsets of the places."""
    key = dice.choice([key for key in KEYS if sum(each.key == key for each in log) > 1])
    one, other = dice.sample([place for place, each in enumerate(log) if each.key == key], 2)
    first, second = log[one], log[other]
    log[one] = second._replace(offset=first.offset)
    log[other] = first._replace(offset=second.offset)


def garble(log: list[ReadRecord], dice: random.Random) -> None:
    place = dice.randrange(len(log))
    value = bytearray(log[place].value)
    value[dice.randrange(len(value))] ^= 1 << dice.randrange(8)
    log[place] = log[place]._replace(value=bytes(value))


def rekey(log: list[ReadRecord], dice: random.Random) -> None:
    """One key's record comes back under another key."""
    place = dice.randrange(len(log))
    other = dice.choice([key for key in KEYS if key != log[place].key])
    log[place] = log[place]._replace(key=other)


def invent(log: list[ReadRecord], dice: random.Random) -> None:
    record = log[-1]
    ends = [each.offset for each in log if each.partition == record.partition]
    log.append(record._replace(offset=max(ends) + 1, value=value_of(record.key, COUNT)))


def shift(log: list[ReadRecord], dice: random.Random) -> None:
    """Everything of one partition is one offset later than was said."""
    partition = log[pick(log, dice)].partition
    for place, each in enumerate(log):
        if each.partition == partition:
            log[place] = each._replace(offset=each.offset + 1)


@pytest.fixture
def dice() -> random.Random:
    seed = drawn_seed()
    return random.Random(seed)


def test_a_log_without_faults_is_clean(dice: random.Random):
    ledger, log = sent_and_kept(dice)
    assert check(ledger, log, [log, log[: COUNT // 2]]).is_clean


def test_an_unacknowledged_record_may_be_missing(dice: random.Random):
    ledger, log = sent_and_kept(dice)
    missing = log.pop()
    ledger.acknowledged[missing.key].pop(sequence_in(missing.key, missing.value) or 0, None)
    assert check(ledger, log).is_clean


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (drop, "lost"),
        (repeat, "duplicated"),
        (read_twice, "duplicated"),
        (swap, "reordered"),
        (garble, "altered"),
        (rekey, "altered"),
        (invent, "invented"),
        (shift, "misplaced"),
    ],
)
def test_damage_is_found(damage: Damage, expected: str, dice: random.Random):
    for _ in range(20):
        ledger, log = sent_and_kept(dice)
        damage(log, dice)
        assert expected in kinds(check(ledger, log))


def test_an_unacknowledged_record_may_not_be_there_twice(dice: random.Random):
    ledger, log = sent_and_kept(dice)
    record = log[pick(log, dice, acknowledged=False)]
    ends = [each.offset for each in log if each.partition == record.partition]
    log.append(record._replace(offset=max(ends) + 1))
    assert kinds(check(ledger, log)) == {"duplicated"}


def test_what_a_consumer_saw_may_not_disappear(dice: random.Random):
    ledger, log = sent_and_kept(dice)
    gone = log.pop(pick(log, dice, acknowledged=False))
    earlier = sorted([*log, gone], key=lambda each: (each.partition, each.offset))
    assert kinds(check(ledger, log, [earlier])) == {"vanished"}
    replaced = list(log)
    place = pick(replaced, dice)
    replaced[place] = replaced[place]._replace(value=value_of(b"a", 0)[:-1])
    assert "vanished" in kinds(check(ledger, replaced, [log]))


def test_a_consumer_that_was_thrown_back_is_seen(dice: random.Random):
    ledger, log = sent_and_kept(dice)
    back = [each for each in log if each.partition == 0]
    assert "reordered" in kinds(check(ledger, log, [[*back, *back[2:]]]))


# -- the same in logs that a real node keeps ---------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


def write(bootstrap: str, topic: str, log: list[ReadRecord]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for record in log:
        producer.produce(topic, record.value, record.key, partition=record.partition)
    assert producer.flush(READ_DEADLINE_S) == 0


@pytest.mark.real
@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (None, set()),
        (drop, {"lost", "misplaced"}),
        (repeat, {"duplicated"}),
        (swap, {"reordered", "misplaced"}),
        (garble, {"altered"}),
    ],
)
def test_damage_in_a_real_log_is_found(
    cluster: Cluster, damage: Damage | None, expected: set[str], dice: random.Random
):
    bootstrap = cluster.bootstrap_server
    topic = TopicMaker(bootstrap).create(partitions=PARTITIONS)
    ledger, log = sent_and_kept(dice)
    if damage is not None:
        damage(log, dice)
    write(bootstrap, topic, renumbered(log))
    ends = here(end_offsets, bootstrap, topic, PARTITIONS)
    read = read_to(bootstrap, topic, ends, READ_DEADLINE_S)
    assert len(read) == len(log)
    found = kinds(check(ledger, read))
    if damage is None:
        assert found == set()
    else:
        assert found & expected, found
