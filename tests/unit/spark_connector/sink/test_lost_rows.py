"""What counts as a proof that rows are visible, or that they never will be."""

from __future__ import annotations

import pytest

from moldau.client.sync import Admin, Producer
from moldau.spark_connector.core.commit_protocol import Sight
from moldau.spark_connector.core.ledger import Range, Slot
from moldau.spark_connector.sink.driver import sight_of

from .ledger_cluster import ledger_of, options_of

pytestmark = pytest.mark.real


@pytest.mark.parametrize("ranges", [(), (Range("t", 0, -1, 1),)])
def test_nothing_is_proved_by_rows_that_lie_nowhere(ranges: tuple[Range, ...]) -> None:
    """A broker that has taken a batch twice does not say where it lies."""
    slot = Slot(0, "s.w.0.0", 1, 1, 1, 1, ranges)
    with ledger_of({}) as threaded:
        options = options_of(threaded.cluster, "s")
        with Admin(config=options.admin_config()) as admin:
            assert sight_of(options, slot, admin, 1_000.0) is Sight.UNKNOWN


@pytest.mark.parametrize(
    ("ends", "sight"), [("commit", Sight.VISIBLE), ("abort", Sight.ABORTED), ("", Sight.UNKNOWN)]
)
def test_rows_up_to_the_end_of_the_log(ends: str, sight: Sight) -> None:
    """Nothing is behind them: a proof all the same, but never while they may still be committed."""
    with ledger_of({}) as threaded:
        options = options_of(threaded.cluster, "s")
        config = options.producer_config(transactional_id="s.w.0.0", linger_ms=0)
        with Producer(config=config) as producer, Admin(config=options.admin_config()) as admin:
            producer.init_transactions()
            producer.begin_transaction()
            for number in range(3):
                producer.send("t", b"%d" % number)
            producer.flush()
            if ends:
                getattr(producer, f"{ends}_transaction")()
            # Another row lies elsewhere, so that the checksum says nothing about these.
            slot = Slot(0, "s.w.0.0", 1, 1, 4, 1, (Range("t", 0, 0, 3),))
            assert sight_of(options, slot, admin, 100.0) is sight
            if not ends:
                producer.abort_transaction()
