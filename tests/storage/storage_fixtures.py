"""What storage tests share: records to append, a formatted node on the simulated filesystem."""

from __future__ import annotations

import random as random_module
from collections.abc import Callable
from uuid import UUID

from moldau.protocol.records import Codec, Record, encode_batch
from moldau.protocol.types import TopicPartition, random_topic_id
from moldau.runtime.filesystem import Filesystem
from moldau.storage.cleaner.workers import CleanerWorker
from moldau.storage.log_config import CleanerSettings, LogConfig, LogManagerSettings
from moldau.storage.log_directory import make_durably, open_log_directories
from moldau.storage.log_manager import LogManager
from moldau.storage.meta_properties import MetaProperties, write_meta_properties
from tests.kit.manual_clock import ManualClock
from tests.storage.simulated_filesystem import SimulatedFilesystem

CLUSTER_ID = "5L6g3nShT-eMCtK--X86sw"
NODE_ID = 1
START_MS = 1_700_000_000_000


def topic_id(number: int) -> UUID:
    return UUID(int=0x1234_5678 << 64 | 1000 + number)


def tp(name: str) -> TopicPartition:
    topic, _, partition = name.rpartition("-")
    return TopicPartition(topic, int(partition))


def batch(
    count: int = 1,
    *,
    value_bytes: int = 20,
    timestamp_ms: int = START_MS,
    codec: Codec = Codec.NONE,
    fill: str = "v",
    **options: object,
) -> bytearray:
    """A batch of `count` records as a producer sends it."""
    records = [
        Record(n, timestamp_ms + n, f"k{n}".encode(), (fill * value_bytes)[:value_bytes].encode())
        for n in range(count)
    ]
    return encode_batch(records, codec=codec, **options)  # type: ignore[arg-type]


def format_log_directory(
    filesystem: Filesystem,
    path: str,
    *,
    cluster_id: str,
    node_id: int,
    random: random_module.Random,
) -> MetaProperties:
    """Make a directory, whose name survives a power loss, and give it an identity."""
    make_durably(filesystem, path)
    meta = MetaProperties(cluster_id, node_id, UUID(int=random_topic_id(random).int))
    write_meta_properties(filesystem, path, meta)
    return meta


def format_directory(filesystem: SimulatedFilesystem, path: str, node_id: int = NODE_ID) -> None:
    format_log_directory(
        filesystem,
        path,
        cluster_id=CLUSTER_ID,
        node_id=node_id,
        random=random_module.Random(hash(path) & 0xFFFF),
    )


def make_manager(
    filesystem: SimulatedFilesystem,
    clock: ManualClock,
    paths: tuple[str, ...] = ("/data",),
    *,
    config: LogConfig | None = None,
    topic_config: Callable[[str], LogConfig] | None = None,
    settings: LogManagerSettings | None = None,
    on_directory_offline: Callable[[object], None] | None = None,
    cleaner_settings: CleanerSettings | None = None,
    make_cleaner_worker: Callable[[], CleanerWorker] | None = None,
) -> LogManager:
    """A manager over formatted directories, not started yet."""
    directories = open_log_directories(
        filesystem,
        paths,
        cluster_id=CLUSTER_ID,
        node_id=NODE_ID,
        random=random_module.Random(7),
    )
    fixed = config or LogConfig()
    return LogManager(
        filesystem,
        clock,
        directories,
        settings or LogManagerSettings(),
        topic_config=topic_config or (lambda topic: fixed),
        random=random_module.Random(11),
        on_directory_offline=on_directory_offline,
        cleaner_settings=cleaner_settings,
        make_cleaner_worker=make_cleaner_worker,
    )
