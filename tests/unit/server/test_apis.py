"""The table of APIs: what follows from a row."""

from __future__ import annotations

import pytest

from moldau.protocol.access_control import Operation
from moldau.protocol.api_keys import ApiKey
from moldau.server.apis import (
    APIS,
    CHANGES,
    CONTROLLER_APIS,
    DESCRIBED,
    DESCRIPTIONS,
    FORWARDING,
    PEERS,
    QUORUM,
    Api,
)
from moldau.server.decoding import BULK_BYTES, LIST_BYTES, SCALARS, needs, on_cluster
from moldau.server.fair_shares import Lane

NODES = Operation.CLUSTER_ACTION


@pytest.mark.parametrize(
    ("row", "lane"),
    [
        (Api(0, 0, controller="x"), CHANGES),
        (Api(0, 0, controller="x", operation=Operation.ALTER), CHANGES),
        (Api(0, 0, controller="x", operation=Operation.DESCRIBE), CHANGES),
        (Api(0, 0, controller="x", operation=NODES), PEERS),
        (Api(0, 0, controller=QUORUM, operation=Operation.ALTER), CHANGES),
        (Api(0, 0, controller=QUORUM, operation=Operation.DESCRIBE), PEERS),
        (Api(0, 0, controller=DESCRIBED, operation=Operation.DESCRIBE), DESCRIPTIONS),
        (Api(0, 0, controller=DESCRIBED, operation=NODES), PEERS),
    ],
)
def test_what_nodes_ask_a_controller_has_its_own_lane(row: Api, lane: Lane) -> None:
    assert row.controller_lane is lane


def test_at_a_controller_the_right_on_the_cluster_decides_how_much_is_decoded() -> None:
    own = needs(on_cluster(Operation.ALTER), max_bytes=7)
    assert Api(0, 0, budget=own).controller_budget is own
    described = Api(0, 0, budget=own, operation=Operation.DESCRIBE)
    assert described.controller_budget == needs(on_cluster(Operation.DESCRIBE))
    assert described.controller_budget.max_bytes == LIST_BYTES
    assert Api(0, 0, operation=NODES).controller_budget.max_bytes == BULK_BYTES
    assert CONTROLLER_APIS[ApiKey.ALTER_PARTITION].controller_budget == needs(
        on_cluster(NODES), max_bytes=BULK_BYTES
    )


def test_what_is_only_described_does_not_wait_for_a_change() -> None:
    assert not Api(0, 0, operation=Operation.DESCRIBE).changes_metadata
    assert Api(0, 0, operation=Operation.ALTER).changes_metadata
    assert Api(0, 0).changes_metadata


def test_a_forwarded_request_is_large_where_its_right_is_on_the_cluster() -> None:
    forwarded = APIS[ApiKey.ALTER_PARTITION_REASSIGNMENTS]
    assert (forwarded.lane, forwarded.budget) == (
        FORWARDING,
        needs(on_cluster(Operation.ALTER)),
    )
    assert APIS[ApiKey.UNREGISTER_BROKER].budget == SCALARS
    of_nodes = APIS[ApiKey.VOTE]
    assert (of_nodes.broker, of_nodes.lane, of_nodes.operation) == ("", None, NODES)
