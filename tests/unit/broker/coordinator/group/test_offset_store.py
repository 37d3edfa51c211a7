"""The store of committed offsets against a plain model: every commit with where the log has it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from moldau.broker.coordinator.group.core.offset_store import (
    OffsetStore,
    PartitionKey,
    StoredOffset,
    offset_bytes,
)
from moldau.protocol.types import ZERO_UUID
from tests.kit.dice import drawn_seed

GROUPS, TOPICS, PARTITIONS, PRODUCERS = ("a", "b"), ("x", "y"), (0, 1), (7, 8)
KEYS = [PartitionKey(g, t, p) for g in GROUPS for t in TOPICS for p in PARTITIONS]


@dataclass
class Model:
    """What was committed, and what open transactions would commit, by partition."""

    committed: dict[PartitionKey, StoredOffset] = field(default_factory=dict)
    pending: dict[tuple[int, PartitionKey], StoredOffset] = field(default_factory=dict)

    def put(self, key: PartitionKey, stored: StoredOffset, producer_id: int | None) -> None:
        if producer_id is None:
            self.committed[key] = stored
        else:
            self.pending[producer_id, key] = stored

    def remove(self, key: PartitionKey) -> None:
        self.committed.pop(key, None)
        self.pending = {place: each for place, each in self.pending.items() if place[1] != key}

    def end(self, producer_id: int, *, is_commit: bool) -> set[PartitionKey]:
        ended = {key for producer, key in self.pending if producer == producer_id}
        for key in ended:
            stored = self.pending.pop((producer_id, key))
            before = self.committed.get(key)
            if is_commit and (before is None or before.log_offset < stored.log_offset):
                self.committed[key] = stored
        return ended


def assert_agree(store: OffsetStore, model: Model) -> None:
    committed, pending = model.committed, model.pending
    open_keys = {key for _, key in pending}
    assert store.count == len(committed)
    assert set(store._committed) == {key.group_id for key in committed}
    for key in KEYS:
        assert store.get(*key) == committed.get(key)
        assert store.is_pending(*key) is (key in open_keys)
        stored = [each for (_, its_key), each in pending.items() if its_key == key]
        if key in committed:
            stored.append(committed[key])
        newest = max((each.log_offset for each in stored), default=-1)
        assert store.newest_log_offset(key) == newest
    for group_id in GROUPS:
        of_group = {key for key in open_keys if key.group_id == group_id}
        assert sorted(store.pending_partitions(group_id)) == sorted(of_group)
        assert store.has_open_transactions(group_id) is bool(of_group)
        expected: dict[str, dict[int, StoredOffset]] = {}
        for key, each in committed.items():
            if key.group_id == group_id:
                expected.setdefault(key.topic, {})[key.partition] = each
        assert store.topics(group_id) == expected
        assert store.has_any(group_id) is bool(of_group or expected)
        kept = [each for key, each in committed.items() if key.group_id == group_id]
        kept += [each for (_, key), each in pending.items() if key.group_id == group_id]
        assert store.size_bytes(group_id) == sum(map(offset_bytes, kept))
    for topics in ({"x"}, {"x", "y"}, {"z"}):
        found = list(store.partitions_of(frozenset(topics)))
        wanted = {key for key in open_keys | committed.keys() if key.topic in topics}
        assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize("seed", range(8))
def test_a_store_is_what_a_plain_replay_of_the_log_gives(seed: int) -> None:
    rng = random.Random(drawn_seed(seed))
    store, model = OffsetStore(), Model()
    assert_agree(store, model)
    sizes = dict.fromkeys(GROUPS, 0)
    for log_offset in range(60):
        key = rng.choice(KEYS)
        producer_id = rng.choice((None, *PRODUCERS))
        step = rng.random()
        if step < 0.55:
            metadata = rng.choice(("", "abc", "é"))
            stored = StoredOffset(rng.randint(0, 9), metadata=metadata, log_offset=log_offset)
            store.put(key, stored, producer_id)
            model.put(key, stored, producer_id)
        elif step < 0.75:
            store.remove(key)
            model.remove(key)
        else:
            ended = rng.choice((*PRODUCERS, 9))
            is_commit = rng.random() < 0.6
            told = store.end_transaction(ended, is_commit=is_commit)
            assert sorted(told) == sorted(model.end(ended, is_commit=is_commit))
        assert_agree(store, model)
        before, sizes = sizes, {group_id: store.size_bytes(group_id) for group_id in GROUPS}
        assert {group_id for group_id in GROUPS if sizes[group_id] != before[group_id]} <= (
            store.changed
        )
        store.changed.clear()


def test_a_stored_offset_has_defaults_for_all_other_fields() -> None:
    assert StoredOffset(5) == StoredOffset(5, -1, "", -1, -1, ZERO_UUID, -1)
