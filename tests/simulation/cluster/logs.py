"""Opening the production log of a simulated node, and answering its peers.

Owns: the settings a simulated node gives the log. Must not: stand in for any part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any
from uuid import UUID

from moldau.protocol.schema import Message
from moldau.raft import MetadataLogSettings, QuorumLog, VoterEndpoint
from moldau.raft.core.values import NO_NODE, Destination
from moldau.raft.peers import ConnectionPeers
from moldau.raft.wire_server import Refused, decode_request, encode_response

METADATA_DIRECTORY = "/data"
CLUSTER_ID = "TrV5GzD9TWy-7UjVSbMWxQ"
LISTENER = "CONTROLLER"
SEGMENT_BYTES = 16 * 1024
INDEX_BYTES = 4 * 1024
RETENTION_BYTES = 32 * 1024


async def open_metadata_log(
    disk: Any,
    clock: Any,
    network: Any,
    on_fatal: Callable[[str], None],
    *,
    node_id: int,
    directory_id: UUID,
    endpoints: tuple[VoterEndpoint, ...],
    bootstrap: Sequence[tuple[str, int]],
    random: Random,
    is_controller: bool = True,
) -> QuorumLog:
    """A replica of the quorum on simulated ports. Raises as `QuorumLog.open`."""
    peers = ConnectionPeers(
        network,
        clock,
        cluster_id=CLUSTER_ID,
        client_id=f"raft-{node_id}",
        listener_name=LISTENER,
    )
    settings = MetadataLogSettings(
        metadata_directory=METADATA_DIRECTORY,
        node_id=node_id,
        directory_id=directory_id,
        endpoints=endpoints,
        is_controller=is_controller,
        bootstrap_servers=tuple(Destination(NO_NODE, host, port) for host, port in bootstrap),
        segment_bytes=SEGMENT_BYTES,
        segment_index_bytes=INDEX_BYTES,
        retention_bytes=RETENTION_BYTES,
    )
    return await QuorumLog.open(disk, clock, settings, on_fatal, peers=peers, dice=random)


class QuorumAnswers:
    """QuorumRequests over a QuorumLog."""

    def __init__(self, log: QuorumLog) -> None:
        self._log = log

    async def handle(self, request: Message, api_version: int, client_host: str) -> Message:
        try:
            peer_request = decode_request(request, api_version, CLUSTER_ID)
        except Refused as refusal:
            return refusal.response
        response = await self._log.handle(peer_request)
        return encode_response(response, api_version, LISTENER)
