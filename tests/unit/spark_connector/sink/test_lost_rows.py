"""What counts as a proof that rows are visible, or that they never will be."""

from __future__ import annotations

import pytest

from moldau.client.sync import Admin
from moldau.spark_connector.core.commit_protocol import Sight
from moldau.spark_connector.core.ledger import Range, Slot
from moldau.spark_connector.sink.recovery import look_at

from .ledger_cluster import ledger_of, options_of


@pytest.mark.parametrize("ranges", [(), (Range("t", 0, -1, 1),)])
def test_nothing_is_proved_by_rows_that_lie_nowhere(ranges: tuple[Range, ...]) -> None:
    """A broker that has taken a batch twice does not say where it lies."""
    slot = Slot(0, "s.w.0.0", 1, 1, 1, 1, ranges)
    with ledger_of({}) as threaded:
        options = options_of(threaded.cluster, "s")
        with Admin(config=options.admin_config()) as admin:
            assert look_at(options, (slot,), admin, 1_000.0) == {slot.producer: Sight.UNKNOWN}
