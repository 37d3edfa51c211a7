"""Loading a coordinator's partition: its log, from start to end, into its state machine.

Owns the reading piece by piece, off the loop, and the turns it leaves to others. Must not decide
who is loaded when (the runtime does). Invariant: a shard becomes active in the same turn of the
loop in which the end of the log was reached, still leading in its epoch; nothing comes between.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from moldau.broker.coordinator.batches import Replay, UnreadableLog
from moldau.broker.coordinator.shard import ShardState
from moldau.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from moldau.broker.coordinator.ports import RuntimePorts
    from moldau.broker.coordinator.settings import RuntimeSettings
    from moldau.broker.coordinator.shard import Shard
    from moldau.protocol.coordinator_records import CoordinatorLog

logger = logging.getLogger("moldau.broker.coordinator")

RETRY_MS: Final = 50
"""The pause before a log that cannot be read now (one that is just being opened) is tried again; it
doubles up to MAX_RETRY_MS (a disk that failed)."""
MAX_RETRY_MS: Final = 2_000


async def load(
    shard: Shard[Any], log: CoordinatorLog, *, ports: RuntimePorts, settings: RuntimeSettings
) -> bool:
    """Load a shard, or give up because it is not wanted any more.

    A log that does not decode fails the shard: a coordinator that guesses would hand out offsets
    that nobody committed.

    Returns:
        False when the log cannot be read now: try again later, from its start.
    """
    partition = shard.partition
    if not shard.is_led:
        return False
    begin_ms = ports.clock.monotonic_ms()
    replay = Replay(log, shard.name, shard.machine, partition.log_start_offset)
    is_told = False
    try:
        is_whole = await _replay_all(shard, replay, settings.load_buffer_bytes)
        is_told = True
    except UnreadableLog as problem:
        logger.error("%s cannot be loaded: %s", shard.name, problem)
    finally:
        if not is_told and shard.state is ShardState.LOADING:
            shard.fail()
    if not is_told or shard.state is not ShardState.LOADING:
        return True
    if is_whole:
        _say_loaded(shard, replay, ports.clock.monotonic_ms() - begin_ms)
        shard.activate(replay.next_offset)
    return is_whole


async def _replay_all(shard: Shard[Any], replay: Replay, buffer_bytes: int) -> bool:
    """Whether the end of the log was reached, in this very turn of the loop. Raises UnreadableLog.

    False also when the shard is not wanted any more.
    """
    partition = shard.partition
    while shard.is_led and partition.log_start_offset <= replay.next_offset:
        end_offset = partition.log_end_offset
        if replay.next_offset >= end_offset:
            return True
        piece = await partition.read(replay.next_offset, buffer_bytes)
        if piece.error is not ErrorCode.NONE or shard.state is not ShardState.LOADING:
            return False
        for _ in replay.feed(piece.records):
            await asyncio.sleep(0)
            if shard.state is not ShardState.LOADING:
                return False
        # Compaction leaves nothing between batches, and nothing behind the last one.
        found_end = piece.next_offset if piece.records else end_offset
        replay.next_offset = max(replay.next_offset, found_end)
    return False


def _say_loaded(shard: Shard[Any], replay: Replay, elapsed_ms: float) -> None:
    logger.info(
        "%s: loaded %d records up to offset %d in leader epoch %d, in %.0f ms",
        shard.name,
        replay.record_count,
        replay.next_offset,
        shard.leader_epoch,
        elapsed_ms,
    )
