"""Requests that wait, bound to the connections they came in on.

Owns the link from a connection to its waiting operations, so that nothing waits for a client that
has gone. Must not know what they wait for. Invariant: an operation is linked exactly while it is in
its purgatory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from moldau.broker.replica.purgatory import DelayedOperation, Purgatory
    from moldau.server.request_context import RequestContext
    from moldau.server.server_connection import ServerConnection

STATE_KEY: Final = "waiting_operations"


def wait_in(
    purgatory: Purgatory, operation: DelayedOperation, context: RequestContext, timeout_ms: int
) -> bool:
    """`Purgatory.add`, with the operation dropped as soon as its connection is lost.

    The request's frame is given back: what waits must have taken what it needs.
    """
    if context.request.is_connection_lost or not purgatory.add(operation, timeout_ms):
        return False
    context.request.release_body()
    connection = context.request.connection
    waiting = connection.state.get(STATE_KEY)
    if waiting is None:
        waiting = connection.state[STATE_KEY] = {}
        connection.on_close(_drop_all)
    waiting[operation] = purgatory
    return True


def wait_no_longer(
    purgatory: Purgatory, operation: DelayedOperation, context: RequestContext
) -> None:
    """`Purgatory.remove`, and the connection forgets the operation."""
    purgatory.remove(operation)
    waiting = context.request.connection.state.get(STATE_KEY)
    if waiting is not None:
        waiting.pop(operation, None)


def _drop_all(connection: ServerConnection) -> None:
    waiting: dict[DelayedOperation, Purgatory] = connection.state.pop(STATE_KEY, {})
    for operation, purgatory in waiting.items():
        purgatory.drop(operation)
