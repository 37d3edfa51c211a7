"""The sinks that a ledger knows: listed, settled, moved to another id, forgotten.

Owns these calls, each a taking of the sinks' ledger ids and one write. Must not write records.
Invariants: what was decided is committed, everything else is aborted, before a sink is moved; a
query that does run is fenced, and fails loudly.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from moldau.client import sync
from moldau.spark_connector.core.ledger import KEY_SEPARATOR, Batch, decode, encode
from moldau.spark_connector.core.ledger_index import LedgerIndex
from moldau.spark_connector.core.task_roles import check_nothing_is_lost
from moldau.spark_connector.errors import InvalidOption, LedgerBusy, RowsLost
from moldau.spark_connector.options.sink_options import SinkOptions
from moldau.spark_connector.sink.batch_plan import plan_batch
from moldau.spark_connector.sink.failures import explained
from moldau.spark_connector.sink.ledger_store import LedgerStore


@dataclass(frozen=True, slots=True)
class KnownSink:
    """A sink as a ledger knows it.

    Attributes:
        batch: its newest decided batch; None for one that has never decided.
        other_queries: how many other queries and named batch writes it remembers.
    """

    sink_id: str
    batch: Batch | None
    other_queries: int


def settle_sink(options: Mapping[str, str]) -> None:
    """Commit what a sink has decided to commit, and abort whatever else it has open.

    Each start of a query does the same. Standard transactions also end by their time limit;
    prepared ones have none, and hold back readers until somebody does this.

    Args:
        options: those of the write that matter: `kafka.*`, `sinkId` (or `checkpointLocation`), and
            `ledgerTopic` if it was given.

    Raises:
        SparkConnectorError: what a start would raise; RowsLost when rows are lost.
    """
    parsed = SinkOptions.parse(options)
    planned = plan_batch(parsed, parsed.stream_sink_id())
    if planned.plan.record.batch is not None:
        with explained(f"settling sink {planned.sink_id!r}"):
            check_nothing_is_lost(planned.plan.record.batch)


def list_sinks(options: Mapping[str, str]) -> list[KnownSink]:
    """The sinks that a ledger knows, by their ids; disturbs nobody.

    Args:
        options: `kafka.*`, and `ledgerTopic` if it was given.

    Raises:
        SparkConnectorError: the ledger cannot be read, or holds a record that cannot be understood.
    """
    parsed = SinkOptions.parse(options)
    with (
        explained(f"listing the sinks of {parsed.ledger_topic}"),
        sync.Admin(config=parsed.admin_config()) as admin,
        LedgerStore(parsed, "", admin) as store,
    ):
        if parsed.ledger_topic not in admin.list_topics():
            return []
        index = store.whole()
        return [_known(index, each) for each in index.sink_ids()]


def _known(index: LedgerIndex, sink_id: str) -> KnownSink:
    record = index.record(sink_id)
    others = sum(KEY_SEPARATOR in key for key, _ in index.values(sink_id))
    return KnownSink(sink_id, None if record is None else record.batch, others)


def move_sink(options: Mapping[str, str], new_id: str) -> None:
    """Take what is known of a sink to another id, under which its query then goes on.

    Args:
        options: as for `settle_sink`, of the old sink, which is settled first.
        new_id: must not have written anything yet.

    Raises:
        SparkConnectorError: what settling raises.
        InvalidOption: the old sink is not known, or the new id is that of another one.
    """
    parsed = SinkOptions.parse({**options, "sinkId": new_id})
    old_id = SinkOptions.parse(options).stream_sink_id()
    if new_id == old_id:
        raise InvalidOption(f"sink {old_id!r} has this id already")
    _check_known(options, old_id)
    settle_sink(options)
    _rewrite(parsed, old_id, new_id)


def forget_sink(options: Mapping[str, str]) -> None:
    """Forget what is known of a sink: whoever writes with its id next is a new sink.

    What it has committed stays; what it has decided and could not commit is given up. A batch of
    its that comes again is written again, in full.

    Args:
        options: as for `settle_sink`, which is tried first.

    Raises:
        SparkConnectorError: the cluster does not answer.
        InvalidOption: the sink is not known.
    """
    parsed = SinkOptions.parse(options)
    sink_id = parsed.stream_sink_id()
    _check_known(options, sink_id)
    with suppress(RowsLost):
        settle_sink(options)
    _rewrite(parsed, sink_id, None)


def _check_known(options: Mapping[str, str], sink_id: str) -> None:
    if sink_id not in {each.sink_id for each in list_sinks(options)}:
        ledger = SinkOptions.parse(options).ledger_topic
        raise InvalidOption(f"ledger topic {ledger} knows no sink {sink_id!r}")


def _rewrite(options: SinkOptions, old_id: str, new_id: str | None) -> None:
    """Take all keys of a sink away, and write them again under another id, in one transaction."""
    what = f"forgetting sink {old_id!r}" if new_id is None else f"moving sink {old_id!r}"
    with (
        explained(what),
        sync.Admin(config=options.admin_config()) as admin,
        LedgerStore(options, new_id or old_id, admin) as new,
        LedgerStore(options, old_id, admin) as old,
    ):
        if new_id is not None:
            new.take(is_fencing=True)
        old.take(is_fencing=True)
        index = old.whole()
        changes: dict[str, bytes | None] = {}
        for key, value in index.values(old_id):
            changes[key] = None
            if new_id is not None:
                changes[new_id + key[len(old_id) :]] = _renamed(value, new_id)
        if new_id is not None:
            _check_free(index, new_id)
        if not old.change(changes):
            raise LedgerBusy(f"{what}: another driver writes it; once more")


def _renamed(value: bytes, sink_id: str) -> bytes:
    """The record for another sink; nobody is in charge of that yet."""
    return encode(replace(decode(value), sink_id=sink_id, driver=uuid.uuid4().hex))


def _check_free(index: LedgerIndex, sink_id: str) -> None:
    """A start that was refused leaves a record without a batch."""
    known = _known(index, sink_id)
    if known.batch is not None or known.other_queries:
        raise InvalidOption(
            f"sink {sink_id!r} has written batches of its own: what another one has written cannot "
            "be added to that"
        )
