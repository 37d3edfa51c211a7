"""From what the quorum knows of its leader to an address that requests can be sent to.

Owns: the choice of the endpoint. Must not: know who asks. Invariant: a leader without a known
address counts as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

from moldau.raft.core.values import NO_NODE, Leadership
from moldau.runtime.leader_link import LeaderAddress


def leader_address(leadership: Leadership, listener_names: Sequence[str]) -> LeaderAddress | None:
    """The active controller's address, None while nobody is known to lead.

    Args:
        listener_names: `controller.listener.names`; the first that the leader has is taken, as
            brokers and controllers connect by the first one.
    """
    if leadership.leader_id == NO_NODE:
        return None
    by_name = {endpoint.listener_name: endpoint for endpoint in leadership.endpoints}
    for name in listener_names:
        if name in by_name:
            return LeaderAddress(leadership.leader_id, by_name[name].host, by_name[name].port)
    return None
