"""A broker's standing with the controller: registration, heartbeats, controlled shutdown (KIP-631).

Owns the broker epoch and the state STARTING → RECOVERY → RUNNING → PENDING_CONTROLLED_SHUTDOWN →
SHUTTING_DOWN. Must not fence brokers (`controller.core.cluster_control` does), touch partitions, or
look for the controller: the channel does that, across failover. Invariant: nothing is served before
the controller has unfenced this incarnation of the broker, and the epoch that is sent is the one
this incarnation got.

A broker that was fenced while it stood still (its session ran out) keeps its registration: its next
heartbeat unfences it. One that was unregistered, or replaced by another incarnation, is answered
BROKER_ID_NOT_REGISTERED or STALE_BROKER_EPOCH from then on; as in Apache Kafka 4.3 it logs that,
goes on asking, and has to be restarted.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from copy import copy
from enum import IntEnum
from typing import Final

from moldau.broker.lifecycle.controller_channel import (
    INTERNAL_PRINCIPAL,
    ControllerChannel,
    ControllerUnavailable,
)
from moldau.config.backoff import Backoff
from moldau.metadata.features import DIRECTORY_ASSIGNMENT_LEVEL, METADATA_VERSION
from moldau.metadata.image import MetadataDelta, MetadataImage
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p62_broker_registration as p62
from moldau.protocol.messages import p63_broker_heartbeat as p63
from moldau.runtime.restarts import RestartedTask

logger = logging.getLogger(__name__)

RETRY_MS: Final = 200
CATCH_UP_PAUSE_MS: Final = 10
"""The pause between heartbeats of a broker that reads the metadata up to its own registration."""

MAX_FENCED_PAUSE_MS: Final = 500
SHUTDOWN_PAUSE_MS: Final = 50
"""The pause between heartbeats of a broker in controlled shutdown."""

CONTROLLED_SHUTDOWN_TIMEOUT_MS: Final = 300_000
"""The longest controlled shutdown while the controller answers, as in Apache Kafka's brokers."""

CONTROLLER_SILENCE_MS: Final = 10_000
"""Without an answer for so long no controller can end the controlled shutdown."""

FATAL_REGISTRATION_ERRORS: Final = frozenset(
    {
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_REGISTRATION,
        ErrorCode.BROKER_ID_NOT_REGISTERED,
    }
)


class BrokerState(IntEnum):
    """The values of Kafka's BrokerState metric."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


LEGAL_TRANSITIONS: Final = {
    BrokerState.NOT_RUNNING: {BrokerState.STARTING},
    BrokerState.STARTING: {BrokerState.RECOVERY, BrokerState.SHUTTING_DOWN},
    BrokerState.RECOVERY: {BrokerState.RUNNING, BrokerState.SHUTTING_DOWN},
    BrokerState.RUNNING: {BrokerState.PENDING_CONTROLLED_SHUTDOWN, BrokerState.SHUTTING_DOWN},
    BrokerState.PENDING_CONTROLLED_SHUTDOWN: {BrokerState.SHUTTING_DOWN},
    BrokerState.SHUTTING_DOWN: {BrokerState.NOT_RUNNING},
}


class RegistrationRefused(Exception):
    """The controller will never accept this broker as it is; the text says why."""


class BrokerLifecycle:
    """Registers, then sends heartbeats until `stop`; one task owns it (states: LEGAL_TRANSITIONS).

    Args:
        registration: of this incarnation, with the advertised listeners and all log directories;
            its previous broker epoch is that of the last clean shutdown, -1 without one (KIP-966).
        confirmed_for_ms: how long the answer to a heartbeat counts; less than the session, so that
            no other broker is elected in this one's place for its silence in that time.
        catch_up: returns when this broker has applied all metadata that was committed when it was
            called. Raises: ControllerUnavailable.
    """

    def __init__(
        self,
        controller: ControllerChannel,
        registration: p62.BrokerRegistrationRequest,
        *,
        heartbeat_interval_ms: int,
        registration_timeout_ms: int,
        confirmed_for_ms: float,
        catch_up: Callable[[], Awaitable[None]],
        metadata_offset: Callable[[], int],
        offline_log_directories: Callable[[], list[uuid.UUID]],
    ) -> None:
        self.state = BrokerState.NOT_RUNNING
        self.broker_epoch = -1
        self._controller = controller
        self._registration = registration
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._registration_timeout_ms = registration_timeout_ms
        self._confirmed_for_s = confirmed_for_ms / 1000
        self._catch_up = catch_up
        self._metadata_offset = metadata_offset
        self._offline_log_directories = offline_log_directories
        self._heartbeats: RestartedTask | None = None
        self._unfenced = asyncio.Event()
        self._may_stop = asyncio.Event()
        self._want_shutdown = False
        self._wake = asyncio.Event()
        self._fenced_pauses = Backoff(CATCH_UP_PAUSE_MS, MAX_FENCED_PAUSE_MS)
        self._is_fenced = True
        self._problem = ""
        self._must_register = False
        self._last_answer_s = 0.0
        self._confirmed_s = -math.inf

    def is_confirmed(self) -> bool:
        """Whether no other broker was elected in this one's place for its silence, except by
        metadata that it has applied.
        """
        return self._counts_still(asyncio.get_running_loop().time())

    def _counts_still(self, now_s: float) -> bool:
        return now_s - self._confirmed_s <= self._confirmed_for_s

    def move_to(self, state: BrokerState) -> None:
        assert state in LEGAL_TRANSITIONS[self.state], f"{self.state.name} to {state.name}"
        self.state = state

    async def register(self) -> int:
        """Register this incarnation and return its broker epoch.

        Raises:
            RegistrationRefused: the controller refused for good.
            ControllerUnavailable: no controller answered within the registration timeout.
        """
        request = self._registration_request()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._registration_timeout_ms / 1000
        broker_id, refusal = self._registration.broker_id, ""
        while True:
            try:
                response: p62.BrokerRegistrationResponse = await self._controller.send(
                    request,
                    INTERNAL_PRINCIPAL,
                    timeout_ms=max(0, int((deadline - loop.time()) * 1000)),
                )
            except ControllerUnavailable as problem:
                words = str(problem)
            else:
                if response.error_code == ErrorCode.NONE:
                    self.broker_epoch = response.broker_epoch
                    self._problem = ""
                    return self.broker_epoch
                error = ErrorCode.of(response.error_code)
                if error in FATAL_REGISTRATION_ERRORS:
                    raise RegistrationRefused(
                        f"the controller refused broker {broker_id} of cluster "
                        f"{self._registration.cluster_id}: {error.name}, {error.message}"
                    )
                words = refusal = error.name
                if error is ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                    words = refusal = f"{error.name}, another process serves as node.id={broker_id}"
            if loop.time() >= deadline:
                # The last attempt may have had no time left for an answer.
                raise ControllerUnavailable(
                    f"broker {broker_id} could not register within initial.broker.registration."
                    f"timeout.ms={self._registration_timeout_ms}: {refusal or words}"
                )
            self._report(f"not registered yet: {words}")
            await asyncio.sleep(RETRY_MS / 1000)

    def _registration_request(self) -> p62.BrokerRegistrationRequest:
        """Without failed log directories: the replicas in those are lost at once."""
        failed = self._offline_log_directories()
        request = copy(self._registration)
        request.log_dirs = [each for each in request.log_dirs if each not in failed]
        return request

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Have the registration of this incarnation sent again when the metadata's lacks log
        directories: the cluster's `metadata.version` did not know them when this broker registered,
        and does now (KIP-858). The epoch stays.
        """
        features = image.features
        registration = image.cluster.brokers.get(self._registration.broker_id)
        if (
            not self._must_register
            and registration is not None
            and not registration.directories
            and METADATA_VERSION in features.finalized_levels
            and features.metadata_level >= DIRECTORY_ASSIGNMENT_LEVEL
        ):
            self._must_register = True
            self._wake.set()

    def start_heartbeats(self) -> None:
        """Start the heartbeats; the first one leaves at once."""
        assert self.broker_epoch >= 0, "registered before the first heartbeat"
        self._heartbeats = RestartedTask("broker-heartbeats", self._beat)
        self._heartbeats.start()

    async def wait_unfenced(self) -> None:
        await self._unfenced.wait()

    async def begin_controlled_shutdown(
        self,
        timeout_ms: int = CONTROLLED_SHUTDOWN_TIMEOUT_MS,
        silence_ms: int = CONTROLLER_SILENCE_MS,
    ) -> bool:
        """Ask the controller to move leadership away; True when that is done and committed. Waits
        `timeout_ms` at most, and `silence_ms` without any answer of a controller.
        """
        if self._heartbeats is None:
            return False
        self.move_to(BrokerState.PENDING_CONTROLLED_SHUTDOWN)
        loop = asyncio.get_running_loop()
        self._last_answer_s = loop.time()
        deadline_s = loop.time() + timeout_ms / 1000
        self._want_shutdown = True
        self._wake.set()
        while not self._may_stop.is_set():
            is_silent = self._last_answer_s + silence_ms / 1000 < deadline_s
            until_s = min(deadline_s, self._last_answer_s + silence_ms / 1000)
            if loop.time() >= until_s:
                logger.warning(
                    "the controller did not let go of this broker within %d ms%s; stopping anyway",
                    silence_ms if is_silent else timeout_ms,
                    " of its last answer" if is_silent else "",
                )
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until_s):
                    await self._may_stop.wait()
        return True

    def beat_soon(self) -> None:
        """Send the next heartbeat without waiting: there is news for the controller."""
        self._wake.set()

    async def stop(self) -> None:
        """End the heartbeats, also one on its way; the session then runs out at the controller."""
        heartbeats, self._heartbeats = self._heartbeats, None
        if heartbeats is not None:
            self._may_stop.set()
            self._wake.set()
            await heartbeats.stop()

    async def _beat(self) -> None:
        while not self._may_stop.is_set():
            # Before the request is made: news that come while it is under way need another one.
            self._wake.clear()
            if self._must_register:
                await self._register_again()
            request = p63.BrokerHeartbeatRequest(
                broker_id=self._registration.broker_id,
                broker_epoch=self.broker_epoch,
                current_metadata_offset=self._metadata_offset(),
                want_fence=False,
                want_shut_down=self._want_shutdown,
                offline_log_dirs=self._offline_log_directories(),
            )
            begin_s = asyncio.get_running_loop().time()
            try:
                # No longer than one interval: a later heartbeat is newer.
                response: p63.BrokerHeartbeatResponse = await self._controller.send(
                    request, INTERNAL_PRINCIPAL, timeout_ms=self._heartbeat_interval_ms
                )
            except ControllerUnavailable as problem:
                self._report(f"heartbeat not answered: {problem}")
                pause_ms = float(RETRY_MS)
            else:
                pause_ms = self._take_heartbeat(response)
                if response.error_code == ErrorCode.NONE and not response.is_fenced:
                    await self._confirm(begin_s)
            await self._pause(pause_ms)

    async def _confirm(self, begin_s: float) -> None:
        """A heartbeat that was sent at `begin_s` was accepted.

        After a long silence that is not enough: the session may have been over before, others lead
        instead, and the metadata that says so is not here yet.
        """
        if not self._counts_still(begin_s):
            try:
                async with asyncio.timeout(self._heartbeat_interval_ms / 1000):
                    await self._catch_up()
            except (TimeoutError, ControllerUnavailable):
                return  # the next heartbeat tries again
        self._confirmed_s = begin_s

    async def _register_again(self) -> None:
        """One attempt; the next heartbeat makes another one if the metadata still requires it."""
        self._must_register = False
        try:
            response: p62.BrokerRegistrationResponse = await self._controller.send(
                self._registration_request(),
                INTERNAL_PRINCIPAL,
                timeout_ms=self._heartbeat_interval_ms,
            )
        except ControllerUnavailable as problem:
            self._must_register = True
            self._report(f"registration not refreshed: {problem}")
            return
        error = ErrorCode.of(response.error_code)
        if error is ErrorCode.NONE:
            self.broker_epoch = response.broker_epoch
        else:
            self._must_register = error.retriable
            self._report(f"registration not refreshed: {error.name}")

    def _take_heartbeat(self, response: p63.BrokerHeartbeatResponse) -> float:
        """Act on one answer; returns the pause before the next heartbeat in milliseconds."""
        self._last_answer_s = asyncio.get_running_loop().time()
        if response.error_code != ErrorCode.NONE:
            error = ErrorCode.of(response.error_code)
            if (
                error is ErrorCode.STALE_BROKER_EPOCH
                and not self._unfenced.is_set()
                and not self._want_shutdown
            ):
                # A registration of an earlier incarnation came late, while this one was silent.
                # This one has served nothing yet, so it registers again. Apache Kafka does not.
                self._must_register = True
                return self._heartbeat_interval_ms
            advice = ""
            if error in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
                advice = ": this registration is void, restart the broker"
                if self._want_shutdown:
                    self._may_stop.set()  # the controller holds nothing of this one any more
            self._report(f"heartbeat refused, {error.name}{advice}")
            return self._heartbeat_interval_ms
        if self._problem:
            logger.info("the controller answers heartbeats again")
            self._problem = ""
        if response.should_shut_down:
            self._may_stop.set()
        self._note_fencing(response.is_fenced)
        if self._want_shutdown:
            return SHUTDOWN_PAUSE_MS
        if response.is_fenced:
            return self._fenced_pauses.next_ms()
        self._fenced_pauses.reset()
        return self._heartbeat_interval_ms

    def _note_fencing(self, is_fenced: bool) -> None:
        if is_fenced and not self._is_fenced and not self._want_shutdown:
            logger.warning("this broker has been fenced; it asks to be let in again")
        elif not is_fenced and self._is_fenced and self._unfenced.is_set():
            logger.info("this broker is not fenced any more")
        self._is_fenced = is_fenced
        if not is_fenced:
            self._unfenced.set()

    def _report(self, problem: str) -> None:
        """Log a problem when it is a new one: it may come again every interval."""
        if problem != self._problem:
            self._problem = problem
            logger.warning("%s", problem)

    async def _pause(self, pause_ms: float) -> None:
        if not self._may_stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_ms / 1000):
                    await self._wake.wait()
