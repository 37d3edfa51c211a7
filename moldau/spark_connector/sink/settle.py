"""The sinks of a ledger (`moldau pipeline sinks`): listed, settled, moved to another id, forgotten.

Owns these calls, each a taking of the sinks' ledger ids and one write to each. Must not write
records.
Invariants: what was decided is committed, everything else is aborted, before a sink is moved; a
query that does run is fenced, and fails loudly.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from moldau.client import sync
from moldau.spark_connector.core.commit_protocol import check_nothing_is_lost
from moldau.spark_connector.core.ledger import (
    KEY_SEPARATOR,
    Batch,
    BatchState,
    LedgerIndex,
    decode,
    encode,
    finished_key,
)
from moldau.spark_connector.errors import InvalidOption, LedgerBusy, RowsLost
from moldau.spark_connector.failures import explained
from moldau.spark_connector.sink.driver import plan_batch
from moldau.spark_connector.sink.ledger_store import LedgerStore
from moldau.spark_connector.sink.options import SinkOptions

_log: Final = logging.getLogger(__name__)


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
    prepared ones have none, and hold back readers until this call.

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
    """The sinks that a ledger knows, by their ids; no query notices it.

    Args:
        options: `kafka.*`, and `ledgerTopic` if it was given.

    Raises:
        SparkConnectorError: the ledger cannot be read, or holds a record that cannot be understood.
    """
    parsed = SinkOptions.parse(options)
    with explained(f"listing the sinks of {parsed.ledger_topic}"):
        index = _whole_ledger(parsed)
        return [_known(index, each) for each in index.sink_ids()]


@contextmanager
def _stores(options: SinkOptions, *sink_ids: str) -> Iterator[tuple[sync.Admin, list[LedgerStore]]]:
    """The ledgers of these sinks, and the client that they share."""
    with ExitStack() as stack:
        admin = stack.enter_context(sync.Admin(config=options.admin_config()))
        made = (LedgerStore(options, each, admin) for each in sink_ids)
        yield admin, [stack.enter_context(closing(each)) for each in made]


def _whole_ledger(options: SinkOptions) -> LedgerIndex:
    with _stores(options, "") as (admin, [store]):
        if options.ledger_topic not in admin.list_topics():
            return LedgerIndex()
        return store.whole()


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


def forget_sink(options: Mapping[str, str], query_id: str | None = None) -> None:
    """Forget what is known of a sink, or of one query in it: its next batch is that of a new one.

    What it has committed stays; what it has decided and could not commit is given up. A batch of
    its that comes again is written again, in full.

    Args:
        options: as for `settle_sink`, which is tried first.
        query_id: what is known of the sink's other queries stays; None: of all of them.

    Raises:
        SparkConnectorError: the cluster does not answer.
        InvalidOption: the ledger does not know the sink, or the query in it.
    """
    parsed = SinkOptions.parse(options)
    sink_id = parsed.stream_sink_id()
    _check_known(options, sink_id)
    with suppress(RowsLost):
        settle_sink(options)
    what = f"forgetting sink {sink_id!r}"
    with explained(what), _stores(parsed, sink_id) as (_, [store]):
        store.take(is_fencing=True)
        changes = _forgotten(store.whole(), sink_id, query_id)
        if not changes:
            raise InvalidOption(f"sink {sink_id!r} knows no query {query_id}")
        if not store.change(changes):
            raise _busy(what, sink_id)


def _forgotten(index: LedgerIndex, sink_id: str, query_id: str | None) -> dict[str, bytes | None]:
    """The new values that take a sink's queries away; none without such a query."""
    if query_id is None:
        return {key: None for key, _ in index.values(sink_id)}
    changes: dict[str, bytes | None] = {}
    if index.finished(sink_id, query_id) is not None:
        changes[finished_key(sink_id, query_id)] = None
    record = index.record(sink_id)
    if record is not None and record.batch is not None and record.batch.query_id == query_id:
        changes[sink_id] = encode(replace(record, driver=uuid.uuid4().hex, batch=None))
    return changes


def _check_known(options: Mapping[str, str], sink_id: str) -> None:
    """Refuse an unknown sink. Decodes no records of others: newer releases may share the ledger."""
    parsed = SinkOptions.parse(options)
    with explained(f"looking for sink {sink_id!r}"):
        is_known = sink_id in _whole_ledger(parsed).sink_ids()
    if not is_known:
        raise InvalidOption(f"ledger topic {parsed.ledger_topic} knows no sink {sink_id!r}")


def _rewrite(options: SinkOptions, old_id: str, new_id: str) -> None:
    """Write all keys of a sink under another id, and then take the old ones away.

    Each in the transaction of that id's ledger, which a driver that takes the id ends:

        (1) the move takes both ids       (2) a driver takes the new id: nothing is written there
        or: (2') the values are written   (3') a driver has taken the old id: they are taken back

    A move that dies after (2') is made again: what is written already is the same.
    """
    what = f"moving sink {old_id!r}"
    with explained(what), _stores(options, new_id, old_id) as (_, [new, old]):
        new.take(is_fencing=True)
        old.take(is_fencing=True)
        index = old.whole()
        record = index.record(old_id)
        batch = None if record is None else record.batch
        if batch is not None and batch.state is not BatchState.DONE:
            raise _busy(what, old_id)  # it was settled, and has decided since
        _check_free(index, new_id, old_id)
        values = list(index.values(old_id))
        moved = {
            # With a token that no driver has.
            new_id + key[len(old_id) :]: encode(
                replace(decode(value), sink_id=new_id, driver=uuid.uuid4().hex)
            )
            for key, value in values
        }
        if not new.change(moved):
            raise _busy(what, new_id)
        if not old.change({key: None for key, _ in values}):
            if not new.change(dict.fromkeys(moved)):
                _log.warning("what sink %r has got of %r stays there", new_id, old_id)
            raise _busy(what, old_id)


def _busy(what: str, sink_id: str) -> LedgerBusy:
    return LedgerBusy(
        f"{what}: a query writes with the sink id {sink_id!r} now. Stop it, and start it again "
        "only after this"
    )


def _check_free(index: LedgerIndex, new_id: str, old_id: str) -> None:
    """Refuse an id that has batches. A refused start leaves a record without a batch there,
    and a move that died the same batches.
    """
    batches = _batches(index, new_id)
    if any(batches.values()) and batches != _batches(index, old_id):
        raise InvalidOption(
            f"sink {new_id!r} has written batches of its own: what another one has written cannot "
            "be added to that"
        )


def _batches(index: LedgerIndex, sink_id: str) -> dict[str, Batch | None]:
    """What a sink has decided, by the rest of its keys."""
    return {key[len(sink_id) :]: decode(value).batch for key, value in index.values(sink_id)}
