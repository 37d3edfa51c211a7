"""Record batches as kafka-python and aiokafka write and read them: the tests' oracles."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from aiokafka.record.default_records import (
    _DefaultRecordBatchBuilderPy as AiokafkaBuilder,
)
from aiokafka.record.default_records import (
    _DefaultRecordBatchPy as AiokafkaBatch,
)

from moldau.protocol.records import Codec, Record

with warnings.catch_warnings():
    # kafka-python reads its schemas through a deprecated importlib.resources function.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

# kafka-python needs python-snappy, which has no part in this project.
KAFKA_PYTHON_CODECS = [Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD]

BUILDERS: dict[str, Any] = {"aiokafka": AiokafkaBuilder, "kafka-python": KafkaPythonBuilder}
READERS: dict[str, Any] = {"aiokafka": AiokafkaBatch, "kafka-python": KafkaPythonBatch}

CASES = [(name, codec) for name in BUILDERS for codec in Codec]
CASES.remove(("kafka-python", Codec.SNAPPY))


def oracle_encode(
    name: str, records: Iterable[Record], codec: Codec, *, producer: tuple[int, int, int]
) -> bytes:
    """The batch the named client builds; `producer` is (id, epoch, base sequence)."""
    producer_id, producer_epoch, base_sequence = producer
    builder = BUILDERS[name](
        magic=2,
        compression_type=int(codec),
        is_transactional=False,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        batch_size=1 << 30,
    )
    for index, record in enumerate(records):
        builder.append(index, record.timestamp_ms, record.key, record.value, list(record.headers))
    return bytes(builder.build())


def oracle_decode(name: str, batch: bytes) -> list[Record]:
    """What the named client reads from a batch, its CRC checked."""
    reader = READERS[name](batch)
    assert reader.validate_crc()
    return [
        Record(entry.offset, entry.timestamp, entry.key, entry.value, tuple(entry.headers))
        for entry in reader
    ]
