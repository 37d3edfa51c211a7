"""WriteTxnMarkers v1-v2: write the markers that end transactions in partitions led here.

Behaviour: sent by transaction coordinators (CLUSTER_ACTION), and by administrators who abort a
hanging transaction (ALTER on the cluster, KIP-664). With acks=all's demands: a partition is NONE
when its marker is committed, within `request.timeout.ms`. A marker of an older coordinator than the
partition has seen is TRANSACTION_COORDINATOR_FENCED, of an older producer epoch
INVALID_PRODUCER_EPOCH; from v2 on a marker says that its transaction had its own epoch, and
must then be above the partition's epoch (KIP-890, KIP-1228). Markers for `__consumer_offsets` go
through the group coordinator.
Known gaps: none.
"""

from __future__ import annotations

from collections.abc import Iterator

from moldau.broker.api.services import BrokerServices
from moldau.protocol.access_control import Operation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p27_write_txn_markers as p27
from moldau.server.request import RequestContext


def handle(
    services: BrokerServices, context: RequestContext, request: p27.WriteTxnMarkersRequest
) -> Iterator[None]:
    refusal = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if context.authorized_cluster(Operation.ALTER, logs_denied=False) or (
        context.authorized_cluster(Operation.CLUSTER_ACTION)
    ):
        context.exempt_from_request_quota()
        refusal = ErrorCode.NONE
    yield from services.coordinators.write_markers(request, context.respond, refusal)
