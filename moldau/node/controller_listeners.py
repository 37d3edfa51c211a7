"""The listeners of a node's controller: when each opens, and the stores that it has now.

Owns the order of binding against the loading of ACLs (`early.start.listeners`), and key and trust
stores that the controller's own dynamic configuration changes (KIP-226, KIP-919). Must not know
what requests mean. Invariants: without an authorizer every listener opens at once; a listener that
is not early opens after this node has replayed the metadata log up to what is committed; dynamic
settings that cannot be used are logged, and the listener keeps what it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.config import ConfigError, Endpoint, NodeConfig, dynamic_listener_values
from moldau.metadata.image import ConfigResourceType, MetadataImage
from moldau.metadata.log import CommittedBatch, LoadedSnapshot
from moldau.metadata.scram_users import ScramUsers
from moldau.node.listener_changes import ListenerChanges
from moldau.node.listeners import listener_specs
from moldau.server.server import ListenerSpec, Server

if TYPE_CHECKING:
    from moldau.server.authentication.listener_security import ListenerSecurity

logger = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class ControllerListeners:
    """A metadata log listener. States: made → `bind` → early ones are open → `handle_commit` of
    what is committed → all are open → `close`. Runs on the quorum's loop.

    Args:
        users: those of SCRAM.
        on_fatal: called when an address cannot be bound later on.
    """

    config: NodeConfig
    binds: Server
    users: ScramUsers
    on_fatal: Callable[[str], None]
    _late: list[ListenerSpec] = field(default_factory=list)
    _image: Callable[[], MetadataImage] = lambda: MetadataImage.EMPTY
    _high_watermark: Callable[[], int] = lambda: 0
    _values: Mapping[str, str] = field(default_factory=dict)
    _work: asyncio.Task[None] | None = None
    _is_closed: bool = False

    def __post_init__(self) -> None:
        self.changes = ListenerChanges(self.config)

    async def bind(self) -> dict[str, int]:
        """Open the early ones; the ports of all by name.

        Raises:
            ConfigError: the settings of a secured listener cannot work.
            OSError: an address cannot be bound.
        """
        late = self.config.late_controller_listeners
        specs = listener_specs(self.config.controller_listeners, self._security_of)
        self._late = [each for each in specs if each.name in late]
        early = [each for each in specs if each.name not in late]
        await self.binds.start(early)
        for each in self._late:
            logger.info("listener %s opens when the ACLs are loaded", each.name)
        if self._late and self._has_others():
            logger.warning(
                "early.start.listeners leaves out %s: controllers that all wait for the ACLs "
                "cannot elect a leader, and never load them",
                ", ".join(each.name for each in self._late),
            )
        return {
            **{each.name: each.port for each in self._late},
            **{each.name: self.binds.port(each.name) for each in early},
        }

    def follow(self, image: Callable[[], MetadataImage], high_watermark: Callable[[], int]) -> None:
        """What the controller has replayed, and up to where the log is committed."""
        self._image, self._high_watermark = image, high_watermark

    # -- the metadata log ------------------------------------------------------------------------

    def handle_snapshot(self, snapshot: LoadedSnapshot) -> None:
        self._look()

    def handle_commit(self, batch: CommittedBatch) -> None:
        """Called after the controller, which has replayed the batch."""
        if self._late and batch.last_offset + 1 >= self._high_watermark():
            self._start()
        self._look()

    def handle_leader_change(self, leader_id: int, leader_epoch: int) -> None:
        """Ignored: listeners do not depend on who leads."""

    def _look(self) -> None:
        values = self._image().configs.get(ConfigResourceType.BROKER, str(self.config.node_id))
        if values is not self._values and values != self._values:
            self._values = values
            self._start()

    # -- what is due -----------------------------------------------------------------------------

    def _start(self) -> None:
        if not self._is_closed and self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._catch_up())

    async def _catch_up(self) -> None:
        """Do what is due, and what becomes due while it is done: the last settings count."""
        done: Mapping[str, str] | None = None
        try:
            while self._late or done is not self._values:
                late, self._late = self._late, []
                for spec in late:
                    await self.binds.add_listener(spec)
                    logger.info("listener %s is open: the ACLs are loaded", spec.name)
                done = self._values
                await self.changes.take(dynamic_listener_values(done))
        except (ConfigError, OSError) as error:
            self.on_fatal(f"a listener of the controller cannot be opened: {error}")
        finally:
            self._work = None

    async def close(self) -> None:
        """Open and change nothing more."""
        self._is_closed = True
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])

    def _has_others(self) -> bool:
        config = self.config
        return max(len(config.quorum_voters), len(config.quorum_bootstrap_servers)) > 1

    def _security_of(self, endpoint: Endpoint) -> ListenerSecurity | None:
        return self.changes.security_of(endpoint, MetadataImage.EMPTY, self.users)
