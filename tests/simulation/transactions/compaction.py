"""What compaction may remove from a coordinators' log, and what must be the same after it.

Owns: what leaders wrote to compacted partitions, and the meaning of a stretch of such a log.
Must not: use the production cleaner's rules. Invariants: a batch that compaction made smaller keeps
its place, leader epoch and last offset; compaction changes no key's newest record that counts, and
nothing of an open transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tests.kit.seeds import Violation
from tests.simulation.replication.ledger import PartitionTruth
from tests.simulation.replication.mirror import Batch, Mirror
from tests.simulation.transactions.contents import Content

NO_PRODUCER = -1


@dataclass(slots=True)
class Meaning:
    """What a log says. `settled`: by key, the offset and value of the newest record that counts;
    `open`: records of open transactions, by producer id.
    """

    settled: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)
    open: dict[int, dict[bytes, tuple[int, bytes | None]]] = field(default_factory=dict)


def meaning_of(contents: Iterable[Content]) -> Meaning:
    """Records in their order; a tombstone says as much as no record."""
    newest: dict[bytes, tuple[int, bytes | None]] = {}
    meaning = Meaning()
    for content in contents:
        if content.marker is not None:
            decided = meaning.open.pop(content.producer_id, {})
            if content.marker[0]:
                for key, found in decided.items():
                    if key not in newest or newest[key][0] < found[0]:
                        newest[key] = found
            continue
        target = newest
        if content.is_transactional and content.records:
            target = meaning.open.setdefault(content.producer_id, {})
        for record in content.records:
            value = None if record.value is None else bytes(record.value)
            target[bytes(record.key or b"")] = (record.offset, value)
    meaning.settled = {
        key: (offset, value) for key, (offset, value) in newest.items() if value is not None
    }
    return meaning


def _place(name: str, content: Content) -> tuple[str, int, int]:
    return (name, content.base_offset, content.leader_epoch)


def _ends(name: str, contents: Iterable[Content]) -> set[tuple[str, int, int]]:
    """The markers in a stretch of a log."""
    return {_place(name, each) for each in contents if each.marker is not None}


class CompactedLogs:
    """The contents of compacted partitions as leaders wrote them."""

    def __init__(self) -> None:
        self._written: dict[tuple[str, int, int], Content] = {}
        self._removed_ends: set[tuple[str, int, int]] = set()
        """Markers that a replica's compaction has removed."""

    def wrote(self, name: str, content: Content) -> None:
        """A leader wrote this."""
        self._written[_place(name, content)] = content

    def contents(self, name: str, batches: Iterable[Batch]) -> list[Content]:
        """The contents of batches as they were written."""
        return [self._written[(name, each.base_offset, each.leader_epoch)] for each in batches]

    def compacted(self, name: str, before: list[Content], after: list[Content]) -> None:
        """These batches have taken the place of those."""
        self._removed_ends |= _ends(name, before) - _ends(name, after)

    def without_missed_ends(
        self, name: str, written: list[Content], found: list[Content]
    ) -> list[Content]:
        """What was written, as a log says it that has records of transactions, but not the markers
        that ended them: another replica's compaction has removed them before this one had them.
        """
        missed = self._removed_ends - _ends(name, found)
        held = {record.offset for content in found for record in content.records}
        seen: list[Content] = []
        begun: dict[int, list[int]] = {}
        """The places by producer: where in `seen` its batches lie that no marker has decided."""
        for content in written:
            if content.marker is None:
                if content.is_transactional:
                    begun.setdefault(content.producer_id, []).append(len(seen))
                seen.append(content)
                continue
            places = begun.pop(content.producer_id, [])
            left = [tuple(r for r in seen[each].records if r.offset in held) for each in places]
            if _place(name, content) not in missed or not any(left):
                seen.append(content)
                continue
            begun[content.producer_id] = places  # The producer's next marker decides them.
            for place, records in zip(places, left, strict=True):
                seen[place] = replace(seen[place], records=records)
        return seen

    def check_same(self, who: str, name: str, before: Meaning, after: Meaning) -> None:
        """A log after compaction says what it said before. Raises Violation."""
        if before == after:
            return
        keys = before.settled.keys() | after.settled.keys()
        wrong = [
            (key, before.settled.get(key), after.settled.get(key))
            for key in sorted(keys)
            if before.settled.get(key) != after.settled.get(key)
        ]
        raise Violation(
            "compaction-changed",
            f"{who}, {name}: {wrong[:3]}; open {before.open} became {after.open}",
        )


def restored(truth: PartitionTruth, behind: Batch | None, found: Iterable[Batch]) -> list[Batch]:
    """The batches as they were written, those that compaction removed before them included.

    `behind`: what `found` lies behind in its log. A batch that no leader is known to have written
    stays as it is. Raises Violation.
    """
    whole: list[Batch] = []
    last = behind
    for batch in found:
        known = truth.written.get((batch.base_offset, batch.leader_epoch))
        if known is None:
            whole.append(batch)
            last = batch
            continue
        original = known[0]
        if not _may_stand_for(batch, original):
            raise Violation("compaction-altered", f"{truth.name}: {batch} was {original}")
        removed: list[Batch] = []
        before = known[1]
        while before is not None and before != last:
            if last is not None and before.base_offset <= last.base_offset:
                break  # another history: the check that compares the two sees it
            removed.append(before)
            before = truth.written[(before.base_offset, before.leader_epoch)][1]
        whole.extend(reversed(removed))
        whole.append(original)
        last = original
    return whole


def restored_mirror(truth: PartitionTruth, found: Mirror) -> Mirror:
    """A whole log as it was written."""
    return Mirror(restored(truth, None, found.batches), found.start_offset)


def _may_stand_for(batch: Batch, original: Batch) -> bool:
    """Offsets stay; the producer goes at most together with all records."""
    if batch.last_offset != original.last_offset:
        return False
    return batch.producer_id == NO_PRODUCER or batch[4:] == original[4:]
