"""What transactions and groups have promised, checked against what is committed in the logs.

Owns: every client's transactions, fencing, ownership of partitions, and how they meet the streams
of committed records. Must not: be asked by production code. Invariant: the streams follow from the
replication's ledger alone; when that has recorded a lawful loss of committed records, nothing here
is checked any more (`is_spoilt`): what rests on lost records cannot be kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from moldau.client.producer.delivery import Delivery
from moldau.client.records import RecordMetadata
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE
from tests.kit.seeds import Violation
from tests.simulation.replication.ledger import DataLedger, Key, PartitionTruth
from tests.simulation.replication.mirror import Batch, Mirror
from tests.simulation.transactions.compaction import (
    CompactedLogs,
    Meaning,
    meaning_of,
    restored,
    restored_mirror,
)
from tests.simulation.transactions.contents import Content, contents_of
from tests.simulation.transactions.group_log import (
    EPOCH,
    GROUP,
    Commit,
    GroupLog,
    OffsetKey,
    Ownership,
    Patience,
    commit_number,
    topic_mark,
)
from tests.simulation.transactions.streams import Placed, Stream
from tests.simulation.transactions.transaction_log import (
    EPOCH_BUMP_VERSION,
    ONGOING,
    TransactionLog,
)

SEPARATOR = b" "
COMPACTED = (CONSUMER_OFFSETS.topic, TRANSACTION_STATE.topic)


@dataclass(eq=False)
class ClientTransaction:
    """One transaction as its client knows it. `asked`: outcomes it has sent EndTxn for; `told`: the
    outcome it was answered.
    """

    name: str
    transactional_id: str
    producer_id: int
    producer_epoch: int
    version: int
    asked: set[bool] = field(default_factory=set)
    told: bool | None = None
    acknowledged: dict[str, set[bytes]] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)
    offsets: dict[OffsetKey, int] = field(default_factory=dict)
    outcomes: dict[str, bool] = field(default_factory=dict)
    is_two_phase: bool = False
    decided: bool | None = None
    """What an outside coordinator has decided once everything was acknowledged (KIP-939)."""


class TransactionLedger(DataLedger):
    """See the module."""

    def __init__(
        self,
        counts: Counter[str],
        note: Callable[[str], None],
        now: Callable[[], float],
        topic_id_of: Callable[[str], Any],
    ) -> None:
        super().__init__(counts, note)
        self.records.names_writers = False
        self.now = now
        self.topic_id_of = topic_id_of
        self.recreated: set[str] = set()
        """Topics that are deleted and created again."""
        self.topic_names: dict[UUID, str] = {}
        """Every topic that there has been."""
        self.is_spoilt = False
        self.streams: dict[str, Stream] = {}
        self.transactions: dict[str, ClientTransaction] = {}
        self.transaction_log = TransactionLog()
        self.owners: dict[tuple[str, str, int], Ownership] = {}
        self.group_log = GroupLog(now, topic_id_of, self.owners)
        self.given: set[tuple[int, int]] = set()
        """Producer ids and epochs that instances were given."""
        self.fences: dict[int, tuple[int, float]] = {}
        """The fences by producer id: the lowest epoch that may write, and since when."""
        self.excused: set[str] = set()
        """Ids of version 1 of which a request was sent twice: they have no protection from that."""
        self.id_of_producer: dict[int, str] = {}
        self.group_of_id: dict[str, str] = {}
        """For ids that commit a group's offsets."""
        self.processed: dict[OffsetKey, set[int]] = {}
        """Offsets of records that the members of a group have handed out."""
        self.challengers: dict[tuple[str, str], dict[str, bool]] = {}
        """The processes that have joined with a group's instance id; in the classic protocol?"""
        self.challenges: dict[tuple[str, str], dict[str, float]] = {}
        """When they did so last, also those that have gone since; virtual seconds."""
        self.claims: dict[tuple[str, int], dict[tuple[str, int], str]] = {}
        self._loaded_ends: dict[tuple[str, Key], int] = {}
        self._epoch_starts: dict[tuple[str, Key, int], int] = {}
        """Where the log ended when a process began to lead, by process, partition and epoch."""
        self.contents: dict[tuple[str, int, int], Content] = {}
        self.compacted = CompactedLogs()

    def truth(self, key: Key) -> PartitionTruth:
        is_new = key not in self.partitions
        truth = super().truth(key)
        if is_new:
            self._name(key, truth)
        return truth

    def _name(self, key: Key, truth: PartitionTruth) -> None:
        """A topic that follows another of its name has partitions of its own."""
        topic, _, index = truth.name.rpartition("-")
        if topic in self.recreated:
            self.topic_names.setdefault(key[0], topic)
            earlier = [each for each, name in self.topic_names.items() if name == topic]
            number = earlier.index(key[0])
            truth.name = f"{topic}~{number}-{index}" if number else truth.name
        elif topic != "?":
            self.topic_names.setdefault(key[0], topic)

    def on_topic_removed(self, topic_id: UUID) -> None:
        super().on_topic_removed(topic_id)
        for key, truth in self.partitions.items():
            if key[0] == topic_id and truth.name in self.streams:
                # Whatever is open there, nothing ends it any more.
                self.streams[truth.name].open.clear()

    def offsets_of_old_topics(self) -> list[OffsetKey]:
        """Committed offsets of topics that are deleted, whether there are others of their names."""
        found = []
        for key, commits in self.group_log.commits.items():
            mark = topic_mark(commits[-1].metadata) if commits else None
            if mark is not None and mark != str(self.topic_id_of(key[1])):
                found.append(key)
        return found

    def stream(self, name: str) -> Stream:
        """The committed records of a partition."""
        known = self.streams.get(name)
        if known is None:
            known = self.streams[name] = Stream(name)
        return known

    # -- the logs --------------------------------------------------------------------------------

    def on_contents(self, key: Key, batches: list[Batch], records: Any) -> None:
        """As a leader writes it; a marker's outcome must be settled before."""
        super().on_contents(key, batches, records)
        name = self.truth(key).name
        for content in contents_of(records, self.now()):
            self.contents[(name, content.base_offset, content.leader_epoch)] = content
            if is_compacted(name):
                self.compacted.wrote(name, content)
            if name.startswith(CONSUMER_OFFSETS.topic) and content.marker is None:
                self.group_log.wrote(content.records)
            if content.marker is not None and not self.is_spoilt:
                markers = self.stream(name).appended_markers
                markers.setdefault(content.producer_id, []).append(
                    (content.base_offset, content.marker[0])
                )
                self._check_marker(name, content, content.marker[0])

    def on_producers_reloaded(self, broker_id: int, key: Key, producers: Iterable[Any]) -> None:
        """A log was cut: its producers are those of the batches that are left."""
        truth = self.truth(key)
        mirror = truth.replicas[broker_id]
        known = {batch.producer_id for batch in mirror.batches}
        self.counts["producers_reloaded"] += 1
        for entry in producers:
            batch = None if entry.last_offset < 0 else mirror.at(entry.last_offset)
            found = batch and (batch.producer_id, batch.last_sequence)
            wanted = (entry.producer_id, entry.last_sequence)
            is_cut = entry.last_offset >= 0 and found != wanted
            # An exchanged snapshot is believed where no batch says otherwise.
            is_excused = batch is None and self.counts["files_beside_exchanged"]
            if is_cut or (entry.producer_id not in known and not is_excused):
                raise Violation(
                    "producer-of-cut-batches",
                    f"{broker_id}, {truth.name}: {entry.producer_id} up to {entry.last_offset}, "
                    f"sequence {entry.last_sequence}; there is {batch} in {mirror}",
                )

    # -- compaction: mirrors hold what was written, whatever is left of it -------------------------

    def written_unseen(self, broker_id: int, key: Key, found: Mirror) -> list[Batch]:
        truth = self.truth(key)
        return super().written_unseen(broker_id, key, self.as_written(truth, found))

    def on_opened(self, broker_id: int, key: Key, found: Mirror, *, was_killed: bool) -> None:
        truth = self.truth(key)
        super().on_opened(broker_id, key, self.as_written(truth, found), was_killed=was_killed)

    def on_follower_append(self, broker_id: int, key: Key, batches: list[Batch]) -> None:
        truth = self.truth(key)
        if is_compacted(truth.name):
            batches = restored(truth, truth.replicas.setdefault(broker_id, Mirror()).last, batches)
        super().on_follower_append(broker_id, key, batches)

    def as_written(self, truth: PartitionTruth, found: Mirror) -> Mirror:
        """A log that was read, with what compaction has taken from it. Raises Violation."""
        return restored_mirror(truth, found) if is_compacted(truth.name) else found

    def _written(self, key: Key, broker_id: int) -> list[Content]:
        """What a replica's log would hold if it had never been compacted."""
        truth = self.truth(key)
        return self.compacted.contents(truth.name, truth.replicas[broker_id].batches)

    def check_compacted(
        self, who: str, key: Key, broker_id: int, data: bytes, *, may_miss_tombstones: bool
    ) -> Meaning:
        """A log that has everything says what was written to it. Raises Violation.

        Args:
            may_miss_tombstones: whether a replica may have been away for longer than tombstones and
                markers are kept. It then has keys that are gone, and ended transactions are open
                there (as with Apache Kafka).
        """
        name = self.truth(key).name
        written = self._written(key, broker_id)
        if self.is_spoilt:
            return meaning_of(written)
        contents = contents_of(data, 0.0)
        found = meaning_of(contents)
        if may_miss_tombstones:
            known = self.compacted.without_missed_ends(name, written, contents)
            self.counts["missed_ends"] += len(written) - len(known)
            written = known
        expected = meaning_of(written)
        if may_miss_tombstones and found.open == expected.open:
            back = found.settled.keys() - expected.settled.keys()
            self.counts["keys_that_are_back"] += len(back)
            expected.settled |= {each: found.settled[each] for each in back}
        self.compacted.check_same(who, name, expected, found)
        return expected

    def on_compacted(self, who: str, key: Key, before: bytes, after: bytes) -> None:
        """New segments have taken the place of old ones."""
        self.counts["compactions"] += 1
        self.counts["compacted_bytes"] += len(before) - len(after)
        name = self.truth(key).name
        contents = [contents_of(data, 0.0) for data in (before, after)]
        self.compacted.compacted(name, *contents)
        self.compacted.check_same(who, name, *map(meaning_of, contents))

    def _check_marker(self, name: str, content: Content, is_commit: bool) -> None:
        pair = (content.producer_id, content.producer_epoch)
        known = self.transaction_log.outcomes.get(pair)
        if known is None:
            raise Violation("marker-before-outcome", f"{name}: {content}")
        if known is not is_commit and not self._is_excused(content.producer_id):
            raise Violation("marker-of-other-outcome", f"{name}: {content}")

    def _is_excused(self, producer_id: int) -> bool:
        return self.id_of_producer.get(producer_id) in self.excused

    def _lose(self, truth: PartitionTruth, *details: Any) -> None:
        super()._lose(truth, *details)
        if not self.is_spoilt:
            self.is_spoilt = True
            self.counts["spoilt_by_lawful_loss"] += 1

    def _commit(self, truth: PartitionTruth, *details: Any) -> None:
        super()._commit(truth, *details)
        if self.is_spoilt:
            return
        new: list[Batch] = details[-1]
        for batch in new:
            content = self.contents.pop((truth.name, batch.base_offset, batch.leader_epoch))
            self._feed(truth.name, content)

    def _check_sequence(self, truth: PartitionTruth, batch: Batch) -> None:
        """Who writes on in a topic that has taken another's place begins there in its middle."""
        topic = truth.name.rpartition("-")[0].partition("~")[0]
        if topic in self.recreated and batch.producer_id not in truth.last_of_producer:
            truth.last_of_producer[batch.producer_id] = batch
            return
        super()._check_sequence(truth, batch)

    def _feed(self, name: str, content: Content) -> None:
        topic = name.rpartition("-")[0]
        if topic == TRANSACTION_STATE.topic:
            self.transaction_log.feed(content)
            return
        stream = self.stream(name)
        if content.marker is not None:
            own = self.transaction_log.versions.get(content.producer_id, 0) >= EPOCH_BUMP_VERSION
            decided = stream.end(content, has_epoch_of_its_own=own)
            self.counts["markers"] += 1
            self.counts["empty_markers"] += not decided
            self._decide(stream, decided, content.marker[0])
            return
        self._check_fence(name, content)
        placed = stream.add(content)
        if topic != CONSUMER_OFFSETS.topic:
            return
        self.group_log.check_authors(each.record for each in placed)
        if not content.is_transactional:
            self.group_log.feed((each.offset, each.record) for each in placed)
            self._forget_claims(placed)

    def _forget_claims(self, placed: Iterable[Placed]) -> None:
        """The generations of a group that has ended, or changed its protocol, begin again."""
        for each in placed:
            key: Any = CONSUMER_OFFSETS.decode_key(each.record.key or b"")
            if each.record.value is None and key.API_KEY in (GROUP, EPOCH):
                group = key.group if key.API_KEY == GROUP else key.group_id
                for claim in [claim for claim in self.claims if claim[0] == group]:
                    del self.claims[claim]

    def _check_fence(self, name: str, content: Content) -> None:
        fence = self.fences.get(content.producer_id)
        if fence is None or content.producer_epoch >= fence[0]:
            return
        if content.appended_at > fence[1]:
            raise Violation(
                "fenced-wrote",
                f"{name}: {content}, fenced below {fence[0]} since {fence[1] * 1000:.3f}",
            )

    def _decide(self, stream: Stream, decided: list[Placed], is_commit: bool) -> None:
        is_offsets = stream.name.startswith(CONSUMER_OFFSETS.topic)
        if is_offsets and is_commit:
            self.group_log.feed((each.offset, each.record) for each in decided)
        names = {_name_of(each, is_offsets=is_offsets) for each in decided}
        for name in sorted(names):
            transaction = self.transactions.get(name)
            if transaction is not None:
                self._outcome(transaction, stream.name, is_commit)

    def _outcome(self, transaction: ClientTransaction, where: str, is_commit: bool) -> None:
        transaction.outcomes[where] = is_commit
        if transaction.transactional_id in self.excused:
            self.counts["torn_without_protection"] += len(set(transaction.outcomes.values())) > 1
            return
        if len(set(transaction.outcomes.values())) > 1:
            raise Violation("torn-transaction", f"{transaction}")
        if is_commit and True not in transaction.asked:
            raise Violation("committed-unasked", f"{transaction} in {where}")
        if transaction.is_two_phase and is_commit not in transaction.asked:
            raise Violation("two-phase-decided-unasked", f"{transaction} in {where}: {is_commit}")
        if transaction.decided is not None and transaction.decided is not is_commit:
            raise Violation("decided-otherwise", f"{transaction} in {where}: {is_commit}")
        if transaction.told is not None and transaction.told is not is_commit:
            raise Violation("outcome-is-another", f"{transaction} in {where}")

    def on_leads(self, who: str, broker_id: int, key: Key, leader_epoch: int) -> None:
        super().on_leads(who, broker_id, key, leader_epoch)
        mirror = self.truth(key).replicas[broker_id]
        self._epoch_starts.setdefault((who, key, leader_epoch), mirror.end_offset)

    def has_committed_its_past(self, key: Key, who: str, leader_epoch: int) -> bool:
        """Whether a leader's high watermark has passed where its epoch began: then it knows at
        least what those before it reported.
        """
        start = self._epoch_starts.get((who, key, leader_epoch))
        high_watermark = self.truth(key).high_watermarks.get((who, leader_epoch), -1)
        return start is not None and high_watermark >= start

    def on_stable_offset(
        self, key: Key, who: str, last_stable_offset: int, log_end_offset: int
    ) -> None:
        """A replica shows readers of committed records what is below."""
        if self.is_spoilt or self.truth(key).allows_unclean:
            return
        # Reported for the first time when it has been loaded.
        loaded_end = self._loaded_ends.setdefault((who, key), log_end_offset)
        stream = self.streams.get(self.truth(key).name)
        first = None if stream is None else stream.first_open_offset(loaded_end)
        if first is not None and last_stable_offset > first:
            raise Violation(
                "stable-offset-ahead",
                f"{who}: {self.truth(key).name} up to {last_stable_offset}, open from {first}",
            )

    # -- producers -------------------------------------------------------------------------------

    def initialized(
        self, name: str, producer_id: int, producer_epoch: int, *, keeps: bool = False
    ) -> None:
        """An instance got its id and epoch: those before it can write no more, unless it `keeps` an
        open transaction, which they may still write.
        """
        self.id_of_producer[producer_id] = name
        self.counts["instances"] += 1
        if self.is_spoilt:
            return
        pair = (producer_id, producer_epoch)
        if pair not in self.transaction_log.pairs.get(name, ()):
            raise Violation("answered-uncommitted", f"{name} is {pair}, which no log has")
        if pair in self.given:
            raise Violation("pair-given-twice", f"{name} is {pair}")
        self.given.add(pair)
        if keeps:
            return
        for known, whose in self.id_of_producer.items():
            if whose == name:
                epoch = producer_epoch if known == producer_id else 2**15
                before = self.fences.get(known)
                if before is None or before[0] < epoch:
                    self.fences[known] = (epoch, self.now())

    def begun(self, transaction: ClientTransaction) -> None:
        """A client has begun a transaction."""
        self.transactions[transaction.name] = transaction
        self.counts["transactions"] += 1

    def excuse(self, name: str) -> None:
        """A request of an id may arrive late, or twice: only version 2 shows which."""
        self.excused.add(name)
        if name in self.group_of_id:
            self.group_log.may_go_back.add(self.group_of_id[name])

    def delivered(
        self,
        transaction: ClientTransaction,
        place: tuple[str, int],
        value: bytes,
        metadata: RecordMetadata,
    ) -> None:
        """A producer says where a record is."""
        if self.is_spoilt:
            return
        if (metadata.topic, metadata.partition) != place:
            raise Violation("delivered-elsewhere", f"{transaction}: {metadata}, not {place}")
        where = self._where(place, value, metadata.offset)
        if where is not None:
            transaction.acknowledged.setdefault(where, set()).add(value)
        elif not self.is_unclean(place[0]):
            raise Violation("delivered-elsewhere", f"{transaction}: {value!r} not at {metadata}")

    def _where(self, place: tuple[str, int], value: bytes, offset: int) -> str | None:
        """The partition, of whichever topic of that name, that has the value there; at any offset
        where the leader only knew that it has it already (-1).
        """
        for name, stream in self.streams.items():
            topic, _, index = name.rpartition("-")
            if (topic.partition("~")[0], index) != (place[0], str(place[1])):
                continue
            found = stream.placed if offset < 0 else stream.between(offset, offset + 1)
            if any(each.record.value == value for each in found):
                return name
        return None

    def is_unclean(self, topic: str) -> bool:
        """Whether something of a topic of that name was lawfully lost, or deleted with it."""
        return any(
            truth.allows_unclean and truth.name.rpartition("-")[0].partition("~")[0] == topic
            for truth in self.partitions.values()
        )

    def check_decided(self, transaction: ClientTransaction) -> None:
        """Its producer has ended it, or was closed: every record was delivered or has failed."""
        left = sum(not each.done() for each in transaction.deliveries)
        if left:
            raise Violation("undecided-after-end", f"{transaction}: {left} records")

    def check_not_open(self, transaction: ClientTransaction) -> None:
        """Its end was answered, or its producer was closed and has had the time to abort it."""
        known = self.transaction_log.last.get(transaction.transactional_id)
        pair = (transaction.producer_id, transaction.producer_epoch)
        if self.is_spoilt or transaction.transactional_id in self.excused or known is None:
            return
        is_same = (known.producer_id, known.producer_epoch) == pair
        if is_same and known.transaction_status == ONGOING:
            raise Violation("ended-and-left-open", f"{transaction}: {known}")

    def was_overtaken(self, name: str, pair: tuple[int, int], what: str) -> None:
        """A producer was refused because another one has its id, or its transaction had its time,
        or its id was forgotten.
        """
        if self.is_spoilt or name in self.excused:
            return
        last = self.transaction_log.last.get(name)
        if last is None or (last.producer_id, last.producer_epoch) != pair:
            return
        if last.next_producer_id < 0:
            raise Violation("refused-without-reason", f"{name}, {pair}: {what}; {last}")

    def ended(
        self,
        transaction: ClientTransaction,
        pairs: tuple[tuple[int, int], tuple[int, int]],
        *,
        is_commit: bool,
    ) -> None:
        """The call that ends it has returned; `pairs` are the producer's, before and now."""
        self.counts["commits" if is_commit else "aborts"] += 1
        transaction.told = is_commit
        for each in transaction.deliveries if is_commit else ():
            if each.exception() is not None:
                raise Violation("committed-without", f"{transaction}: {each.exception()!r}")
        if self.is_spoilt:
            return
        self._follow(transaction, *pairs)
        if transaction.transactional_id in self.excused:
            return
        log = self.transaction_log
        # Those of version 1 have the transaction's own epoch, of version 2 the one after it.
        epoch = transaction.producer_epoch + (transaction.version >= EPOCH_BUMP_VERSION)
        known = log.outcomes.get((transaction.producer_id, epoch))
        # What its coordinator has aborted in the meantime has the epoch that fences it, and in
        # version 1 transactions before it had this one.
        has_its_own = transaction.version >= EPOCH_BUMP_VERSION
        is_wrong = known is not True if is_commit else known is True and has_its_own
        if is_wrong and (transaction.acknowledged or transaction.offsets):
            raise Violation("answered-uncommitted", f"{transaction}: the log says {known}")
        self.check_not_open(transaction)
        for where, outcome in transaction.outcomes.items():
            if outcome is not is_commit:
                raise Violation("outcome-is-another", f"{transaction} in {where}")

    def _follow(
        self, transaction: ClientTransaction, before: tuple[int, int], after: tuple[int, int]
    ) -> None:
        """The pair of the transaction after this one: its own from version 2 on (KIP-890)."""
        name = transaction.transactional_id
        if after == before:
            is_known = bool(transaction.acknowledged or transaction.offsets)
            if transaction.version >= EPOCH_BUMP_VERSION and is_known:
                raise Violation("epoch-not-bumped", f"{name}: {before}, then {after}")
        elif after in self.given or (after[0] == before[0] and after < before):
            raise Violation("pair-given-twice", f"{name}: {before}, then {after}")
        elif after not in self.transaction_log.pairs.get(name, ()):
            raise Violation("answered-uncommitted", f"{name} is {after}, which no log has")
        self.id_of_producer[after[0]] = name
        self.given.add(after)

    def offset_answered(self, key: OffsetKey, offset: int, metadata: str) -> None:
        """A commit outside of transactions was answered well."""
        self.counts["offset_commits"] += 1
        if not self.is_spoilt and not any(
            (each.offset, each.metadata) == (offset, metadata) for each in self._ever(key)
        ):
            raise Violation("answered-uncommitted", f"{key}: {offset} {metadata!r}")

    def commit_reported(self, key: OffsetKey, metadata: str) -> None:
        """A client's commit has returned: it is committed, or a later one of the same client."""
        self.counts["commits_reported"] += 1
        if self.is_spoilt:
            return
        who, number = metadata.partition(":")[0], commit_number(metadata)
        known = [each.metadata for each in self._ever(key)]
        mine = [each for each in known if each.partition(":")[0] == who]
        if not any(commit_number(each) >= number for each in mine):
            raise Violation("reported-uncommitted", f"{key}: {metadata}, committed {known[-3:]}")

    def _ever(self, key: OffsetKey) -> list[Commit]:
        """What has been committed, with what is not there any more."""
        return [*self.group_log.commits.get(key, ()), *self.group_log.removed_since(key, 0.0)]

    def offset_fetched(
        self,
        key: OffsetKey,
        offset: int,
        metadata: str,
        asked_at: float,
        *,
        is_leader: bool,
        topic_id: UUID | None = None,
        may_miss_tombstones: bool = False,
    ) -> None:
        """A coordinator said what is committed. `topic_id`: the topic that it was asked for, where
        others had its name. `may_miss_tombstones`: what was removed may be back.
        """
        self.counts["offset_fetches"] += 1
        if self.is_spoilt:
            return
        if topic_id is not None and topic_mark(metadata) not in (None, str(topic_id)):
            raise Violation("offset-of-another-topic", f"{key} of {topic_id}: {metadata!r}")
        lawful = self.group_log.tellable(key, asked_at, topic_id, is_leader=is_leader)
        if (offset, metadata) not in lawful:
            if may_miss_tombstones and self.group_log.was_removed(key, offset, metadata):
                self.counts["offsets_back"] += 1
                return
            raise Violation(
                "offset-is-another", f"{key}: {offset} {metadata!r}, lawful {lawful[-3:]}"
            )

    # -- members ---------------------------------------------------------------------------------

    def claimed(
        self, group: str, generation: int, member: str, mine: list[tuple[str, int]]
    ) -> None:
        """SyncGroup has given a member its partitions in a generation."""
        self.counts["assignments"] += 1
        claims = self.claims.setdefault((group, generation), {})
        for partition in mine:
            other = claims.setdefault(partition, member)
            if other != member and not self.is_spoilt:
                raise Violation(
                    "assigned-twice", f"{group}, {generation}: {partition} to {other}, {member}"
                )

    def owned(
        self,
        group: str,
        member: str,
        mine: dict[tuple[str, int], Any],
        patience: Patience,
        instance_id: str | None,
        *,
        is_classic: bool,
    ) -> None:
        """A member reads these from now on: partitions, and the ids of their topics."""
        for (topic, index), topic_id in mine.items():
            new = Ownership(member, patience, instance_id, is_classic, topic_id)
            place = (group, topic, index)
            known = self.owners.get(place)
            is_other = known is not None and known.member != member
            if is_other and self._was_challenged_since(group, new):
                continue  # perhaps it has been replaced, and has not heard of it yet
            if is_other and known is not None and not self.is_spoilt:
                is_due = self.now() >= known.patience.ends_at
                # A topic that is no more has no owner.
                is_over = known.topic_id != topic_id or self._is_challenged(group, known)
                if not is_due and not is_over:
                    raise Violation(
                        "two-owners", f"{place}: {member} and {known} at {self.now() * 1000:.3f}"
                    )
                self.counts["owners_given_up"] += 1
            self.owners[place] = new

    def challenged(
        self, group: str, member: str, instance_id: str | None, *, is_classic: bool
    ) -> None:
        """A process joins with an instance id, from now on until it gives up what it has."""
        if instance_id is not None:
            self.challengers.setdefault((group, instance_id), {})[member] = is_classic
            self.challenges.setdefault((group, instance_id), {})[member] = self.now()

    def _was_challenged_since(self, group: str, owner: Ownership) -> bool:
        """Whether another process has asked for its instance id since the owner asked for what it
        has, whatever has become of that process.
        """
        if owner.instance_id is None:
            return False
        others = self.challenges.get((group, owner.instance_id), {})
        since = owner.patience.heard_at
        return any(member != owner.member and at >= since for member, at in others.items())

    def is_rivalled(self, group: str, member: str, instance_id: str | None) -> bool:
        """Whether another process has ever asked for the same instance id."""
        others = self.challenges.get((group, instance_id or ""), {})
        return any(other != member for other in others)

    def _is_challenged(self, group: str, owner: Ownership) -> bool:
        """Whether another process has asked for the same instance id, and so may have replaced an
        owner if one of the two speaks the classic protocol; members of KIP-848 have to leave first.
        """
        if owner.instance_id is None:
            return False
        others = self.challengers.get((group, owner.instance_id), {})
        return any(
            owner.is_classic or is_classic
            for member, is_classic in others.items()
            if member != owner.member
        )

    def released(
        self, group: str, member: str, others_than: Iterable[tuple[str, int]] = ()
    ) -> None:
        """A member reads nothing any more but `others_than`."""
        kept = {(group, topic, index) for topic, index in others_than}
        if not kept:
            for challengers in self.challengers.values():
                challengers.pop(member, None)
        for place in [each for each in self.owners if each[0] == group and each not in kept]:
            if self.owners[place].member == member:
                del self.owners[place]

    def may_stay(self, group: str, member_id: str, until: float) -> None:
        """A classic member's heartbeat was answered: its coordinator waits for it until then."""
        known = self.group_log.heard_until
        known[(group, member_id)] = max(until, known.get((group, member_id), until))

    def may_go(self, group: str, member_id: str) -> None:
        """A member has left, died, or has to join again."""
        self.group_log.heard_until.pop((group, member_id), None)

    def may_be_lost(
        self, group: str, member: str, asked_at: float, *, is_heartbeat: bool = False
    ) -> bool:
        """Whether a coordinator may answer a member that there is no such group: the group has
        ended or not begun, or (to a heartbeat of KIP-848) is a classic one that stays so, and the
        member was silent for longer than its session, or its instance id was taken.
        """
        is_other = is_heartbeat and self.group_log.may_stay_classic(group)
        if not is_other and not self.group_log.was_absent(group, asked_at):
            return False
        return all(
            self.now() >= known.patience.ends_at or self._is_challenged(group, known)
            for place, known in self.owners.items()
            if place[0] == group and known.member == member
        )

    # -- deletions -------------------------------------------------------------------------------

    def group_deleted(self, group: str, asked_at: float) -> None:
        """DeleteGroups was answered well: what there is was made since."""
        self.counts["groups_deleted"] += 1
        if self.is_spoilt:
            return
        if self.group_log.seen_at.get(group, asked_at) < asked_at:
            raise Violation("deleted-group-lives", f"{group}, deleted since {asked_at * 1000:.3f}")
        for key in self.group_log.commits:
            if key[0] == group:
                self._check_deleted(key, asked_at)

    def offset_deleted(self, key: OffsetKey, asked_at: float) -> None:
        """OffsetDelete was answered well."""
        self.counts["offsets_deleted"] += 1
        if not self.is_spoilt:
            self._check_deleted(key, asked_at)

    def _check_deleted(self, key: OffsetKey, asked_at: float) -> None:
        last = self.group_log.last(key)
        if last is not None and last.since < asked_at:
            raise Violation("deleted-offset-lives", f"{key}: {last}, asked {asked_at * 1000:.3f}")

    # -- the end ---------------------------------------------------------------------------------

    def check_end(self) -> None:
        """Everything has ended: whole or not at all."""
        if self.is_spoilt:
            return
        committed = {
            name: {each.record.value for each in stream.placed if each.outcome}
            for name, stream in self.streams.items()
        }
        self._check_once()
        for transaction in self.transactions.values():
            if transaction.transactional_id in self.excused:
                continue
            outcomes = set(transaction.outcomes.values())
            if transaction.told is not True and True not in outcomes:
                continue
            for where, values in transaction.acknowledged.items():
                if where in self._gone():
                    continue
                missing = values - committed.get(where, set())
                if missing:
                    raise Violation("committed-missing", f"{transaction}: {missing} in {where}")
            for key, offset in transaction.offsets.items():
                if key[0] not in self.group_log.forgotten and not any(
                    (each.offset, each.metadata) == (offset, transaction.name)
                    for each in self.group_log.commits.get(key, ())
                ):
                    raise Violation("committed-offset-missing", f"{transaction}: {key}")

    def _check_once(self) -> None:
        """What a transaction has committed is visible once."""
        for name, stream in self.streams.items():
            if name.startswith(CONSUMER_OFFSETS.topic):
                continue
            found = Counter(each.record.value for each in stream.placed if each.outcome)
            for value, count in found.items():
                whose = bytes(value or b"").partition(SEPARATOR)[0].decode()
                known = self.transactions.get(whose)
                is_excused = known is None or known.transactional_id in self.excused
                if count > 1 and not is_excused:
                    raise Violation("committed-twice", f"{known} in {name}: {value!r}")

    def _gone(self) -> set[str]:
        """Partitions of topics that were deleted."""
        topics = self.metadata.image.topics.topics_by_id
        return {truth.name for key, truth in self.partitions.items() if key[0] not in topics}


def is_compacted(name: str) -> bool:
    """Whether a partition's log is one that the cleaner works on."""
    return name.rpartition("-")[0] in COMPACTED


def _name_of(placed: Placed, *, is_offsets: bool) -> str:
    """The transaction that a record names."""
    if not is_offsets:
        return bytes(placed.record.value or b"").partition(SEPARATOR)[0].decode()
    key: Any = CONSUMER_OFFSETS.decode_key(placed.record.key or b"")
    if placed.record.value is None:
        return ""
    return str(CONSUMER_OFFSETS.decode_value(key, placed.record.value)[0].metadata)
