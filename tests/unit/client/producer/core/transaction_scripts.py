"""The steps of scripts for the transaction manager: its next request, an answer, a known state."""

from __future__ import annotations

from typing import Any

from moldau.client.producer.core.transaction_manager import (
    CoordinatorFeatures,
    Pause,
    TransactionManager,
)
from moldau.client.producer.core.transaction_requests import Ask, RequestKind
from moldau.client.producer.core.transaction_states import Problem, TransactionState
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdResponse
from tests.unit.client.producer.core.transaction_world import refused

S = TransactionState
K = RequestKind
NONE = ErrorCode.NONE
SPOILED = Problem(ErrorCode.INVALID_RECORD, "spoiled")


def ask(manager: TransactionManager, kind: RequestKind) -> Ask:
    """What the manager asks next, on its way."""
    found = manager.next_ask()
    assert found is not None
    assert found.kind is kind
    manager.sending(found)
    assert manager.next_ask() is None, "one request at a time"
    return found


def answer(manager: TransactionManager, kind: RequestKind, response: Any = None) -> Pause:
    """Ask, and answer with `response` or success."""
    asked = ask(manager, kind)
    return manager.answered(asked, refused(asked, NONE) if response is None else response).pause


def initialized(version: int, *, init_version: int = 5, **settings: Any) -> TransactionManager:
    manager = TransactionManager("tid", 60_000, **settings)
    assert manager.initialize() is None
    meet(manager, version, init_version=init_version)
    answer(manager, K.INITIALIZE, InitProducerIdResponse(producer_id=7, producer_epoch=3))
    assert manager.state is S.READY
    return manager


def meet(manager: TransactionManager, version: int, *, init_version: int = 5) -> None:
    manager.met_coordinator(CoordinatorFeatures(init_version, 1, version))


def in_transaction(version: int, **settings: Any) -> TransactionManager:
    manager = initialized(version, **settings)
    assert manager.begin() is None
    return manager


def settle(manager: TransactionManager) -> None:
    manager.batches_settled(needs_new_epoch=False)


def in_state(state: TransactionState, version: int = 2) -> TransactionManager:
    """A producer with two-phase commit that has just come into the state, without any request
    since its transaction began.
    """
    if state in (S.UNINITIALIZED, S.INITIALIZING):
        manager = TransactionManager("tid", 60_000, two_phase=True)
        if state is S.INITIALIZING:
            assert manager.initialize() is None
        return manager
    manager = initialized(version, two_phase=True)
    if state is not S.READY:
        assert manager.begin() is None
    if state in (S.PREPARING, S.PREPARED):
        assert manager.prepare() is None
    if state is S.PREPARED:
        settle(manager)
    elif state is S.COMMITTING:
        assert manager.commit() is None
    elif state is S.ABORTING:
        assert manager.abort() is None
    elif state is S.ABORTABLE_ERROR:
        manager.record_refused(SPOILED)
    elif state is S.FATAL_ERROR:
        manager.break_off(SPOILED)
    assert manager.state is state
    return manager
