"""A controller makes itself known to the active one (KIP-919).

Owns: when to send ControllerRegistration and when to send it again. Must not: decide about
registrations, or know brokers' (`core.cluster_control` does). Invariant: at most one request is
under way; once the replayed metadata holds this incarnation, none is sent until that changes.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final

from moldau.config.backoff import Backoff
from moldau.controller.apis import ControllerApis
from moldau.metadata.features import (
    CONTROLLER_REGISTRATION_LEVEL,
    METADATA_VERSION,
    advertised_features,
    range_entries,
)
from moldau.metadata.image import MetadataImage
from moldau.metadata.log import CommittedBatch, LoadedSnapshot
from moldau.protocol.errors import ErrorCode, LocalProtocolError
from moldau.protocol.messages import p70_controller_registration as p70
from moldau.protocol.messages.p62_broker_registration import Feature
from moldau.protocol.schema import Message
from moldau.runtime.fault_words import words_of
from moldau.runtime.leader_link import LINK_ERRORS, LeaderAddress, LeaderLink
from moldau.runtime.restarts import RestartedTask
from moldau.server.authorizer import Authorizer
from moldau.server.request import Sender

logger = logging.getLogger(__name__)

OWN_PRINCIPAL: Final = "User:ANONYMOUS"
REQUEST_TIMEOUT_MS: Final = 30_000.0
FIRST_BACKOFF_MS: Final = 100.0
MAX_BACKOFF_MS: Final = 120_000.0


class ControllerRegistrationManager:
    """Runs on the quorum's loop, as a listener of the log behind the controller itself.

    Args:
        request: what is registered, but for the features, which the metadata decide; its
            incarnation id names this start of the process.
        image: the committed metadata as this node has replayed it.
        leader: the active controller as far as known, else None.
        apis: this node's own, for the time it is active itself; `link` reaches the others.
    """

    def __init__(
        self,
        request: p70.ControllerRegistrationRequest,
        *,
        image: Callable[[], MetadataImage],
        leader: Callable[[], LeaderAddress | None],
        apis: ControllerApis,
        link: LeaderLink,
        random: random.Random,
    ) -> None:
        self._request = request
        self._image = image
        self._leader = leader
        self._apis = apis
        self._link = link
        self._backoff = Backoff(FIRST_BACKOFF_MS, MAX_BACKOFF_MS, random)
        self._woken = asyncio.Event()
        self._has_registered = False
        """Whether the last attempt did, though another incarnation may have replaced it."""
        self._task = RestartedTask("controller-registration", self._run)
        self._problem = ""

    def start(self) -> None:
        self._task.start()

    @property
    def is_registered(self) -> bool:
        known = self._image().cluster.controllers.get(self._request.controller_id)
        return known is not None and known.incarnation_id == self._request.incarnation_id

    async def close(self) -> None:
        await self._task.stop()
        await self._link.close()

    def handle_snapshot(self, snapshot: LoadedSnapshot) -> None:
        self._woken.set()

    def handle_commit(self, batch: CommittedBatch) -> None:
        if batch.records:
            self._has_registered = self._has_registered or self.is_registered
            self._woken.set()

    def handle_leader_change(self, leader_id: int, leader_epoch: int) -> None:
        self.leader_changed()

    def leader_changed(self) -> None:
        """Another controller takes the registration now."""
        self._link.leader_changed(self._leader())
        self._backoff.reset()
        self._woken.set()

    def _may_register(self) -> bool:
        features = self._image().features
        return (
            METADATA_VERSION in features.finalized_levels
            and features.metadata_level >= CONTROLLER_REGISTRATION_LEVEL
        )

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            if self.is_registered or not self._may_register():
                await self._woken.wait()
                continue
            leader = self._leader()
            self._has_registered = False
            if leader is not None and await self._register(leader):
                self._backoff.reset()
                # What was answered is committed; it is replayed here in a moment.
                await self._pause(REQUEST_TIMEOUT_MS)
                continue
            await self._pause(self._backoff.next_ms())

    async def _pause(self, pause_ms: float) -> None:
        """Wait for a registration in the log, another leader, or the time to try again."""
        try:
            async with asyncio.timeout(pause_ms / 1000):
                while not (self._has_registered or self.is_registered):
                    leader = self._leader()
                    await self._woken.wait()
                    self._woken.clear()
                    if self._leader() != leader:
                        return
        except TimeoutError:
            return

    async def _register(self, leader: LeaderAddress) -> bool:
        """One attempt; whether it was accepted."""
        try:
            response = await self._send(leader)
        except LINK_ERRORS as error:
            return self._failed(f"{leader}: {words_of(error)}")
        except LocalProtocolError as error:
            return self._failed(f"{leader} does not take registrations: {error}")
        error_code = ErrorCode.of(response.error_code)
        if error_code is not ErrorCode.NONE:
            return self._failed(f"{leader} says {error_code.name}: {response.error_message}")
        if self._problem:
            logger.info("controller %d is registered", self._request.controller_id)
            self._problem = ""
        return True

    async def _send(self, leader: LeaderAddress) -> p70.ControllerRegistrationResponse:
        response: Message
        finalized = self._image().features.finalized_levels
        self._request.features = range_entries(Feature, advertised_features(finalized).items())
        if leader.node_id == self._request.controller_id:
            response = await self._apis.answer(
                Sender(OWN_PRINCIPAL, Authorizer(), timeout_ms=REQUEST_TIMEOUT_MS),
                self._request,
            )
        else:
            response = await self._link.send(leader, self._request, timeout_ms=REQUEST_TIMEOUT_MS)
        assert isinstance(response, p70.ControllerRegistrationResponse)
        return response

    def _failed(self, problem: str) -> bool:
        if problem != self._problem:
            self._problem = problem
            logger.info("controller %d not registered: %s", self._request.controller_id, problem)
        return False
