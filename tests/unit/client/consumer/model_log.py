"""A partition's log as a test writes it down, and fetches from it as a broker answers them."""

from __future__ import annotations

from dataclasses import dataclass, field

from moldau.protocol.messages.p01_fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from moldau.protocol.records import (
    Codec,
    ControlRecordType,
    EndTxnMarker,
    Record,
    encode_batch,
    encode_end_txn_batch,
    read_batch_header,
)


@dataclass
class ModelLog:
    """Batches behind one another; `visible` are the offsets that a committed reader must see."""

    batches: list[bytes] = field(default_factory=list)
    next_offset: int = 0
    all_records: list[Record] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    _open: dict[int, tuple[int, list[int]]] = field(default_factory=dict)

    def append(
        self,
        count: int,
        *,
        gaps: int = 0,
        codec: Codec = Codec.NONE,
        producer_id: int = -1,
        epoch: int = 0,
        size: int = 5,
    ) -> None:
        """A batch of `count` records, as if compaction had removed `gaps` before each."""
        base = self.next_offset
        records = [
            Record(
                base + index * (gaps + 1) + gaps,
                1_000 + index,
                b"k%d" % index if index % 3 else None,
                b"v" * size,
                (("h", b"x"),) if index % 4 == 1 else (),
            )
            for index in range(count)
        ]
        last_delta = max(count * (gaps + 1) - 1, 0)
        self.batches.append(
            bytes(
                encode_batch(
                    records,
                    base_offset=base,
                    codec=codec,
                    keep_offsets=True,
                    last_offset_delta=last_delta,
                    partition_leader_epoch=epoch,
                    producer_id=producer_id,
                    producer_epoch=0 if producer_id >= 0 else -1,
                    base_sequence=0 if producer_id >= 0 else -1,
                    is_transactional=producer_id >= 0,
                )
            )
        )
        self.next_offset = base + last_delta + 1
        self.all_records += records
        offsets = [record.offset for record in records]
        if producer_id < 0:
            self.committed += offsets
        else:
            first, pending = self._open.setdefault(producer_id, (base, []))
            pending += offsets
            del first

    def end(self, producer_id: int, *, commit: bool, epoch: int = 0) -> None:
        """The marker that ends the producer's transaction, if one is open."""
        first, offsets = self._open.pop(producer_id, (self.next_offset, []))
        kind = ControlRecordType.COMMIT if commit else ControlRecordType.ABORT
        self.batches.append(
            bytes(
                encode_end_txn_batch(
                    EndTxnMarker(kind, 0),
                    producer_id=producer_id,
                    producer_epoch=0,
                    timestamp_ms=1,
                    base_offset=self.next_offset,
                    partition_leader_epoch=epoch,
                )
            )
        )
        if commit:
            self.committed += offsets
        else:
            self.aborted.append((first, self.next_offset, producer_id))
        self.next_offset += 1

    @property
    def last_stable_offset(self) -> int:
        """Up to where a committed reader may read."""
        return min((first for first, _ in self._open.values()), default=self.next_offset)

    def fetch(self, offset: int, max_bytes: int, *, committed: bool = False) -> PartitionData:
        """What a leader answers: at least one whole batch, cut off anywhere behind it."""
        limit = self.last_stable_offset if committed else self.next_offset
        data = b""
        last = offset
        for batch in self.batches:
            header = read_batch_header(batch)
            if header.next_offset <= offset or header.base_offset >= limit:
                continue
            if data and len(data) >= max_bytes:
                break
            data += batch
            last = header.last_offset
            if len(data) > max_bytes > 0:
                # Never inside of the first batch.
                first = len(self._first_batch(offset))
                data = data[: max(max_bytes, first)]
                break
        aborted = [
            AbortedTransaction(producer_id=producer_id, first_offset=first)
            for first, end, producer_id in self.aborted
            if end >= offset and first <= last
        ]
        return PartitionData(
            high_watermark=self.next_offset,
            last_stable_offset=self.last_stable_offset,
            log_start_offset=0,
            aborted_transactions=aborted if committed else None,
            records=memoryview(data),
        )

    def _first_batch(self, offset: int) -> bytes:
        return next(
            batch for batch in self.batches if read_batch_header(batch).next_offset > offset
        )

    def expected(self, committed: bool) -> list[Record]:
        """What a reader from the beginning sees."""
        if not committed:
            return self.all_records
        seen = set(self.committed)
        limit = self.last_stable_offset
        return [each for each in self.all_records if each.offset in seen and each.offset < limit]


def response_of(topic: str, parts: dict[int, PartitionData]) -> FetchResponse:
    """A response that names its topic by name."""
    for index, data in parts.items():
        data.partition_index = index
    return FetchResponse(
        responses=[FetchableTopicResponse(topic=topic, partitions=list(parts.values()))]
    )
