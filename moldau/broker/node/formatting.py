"""Formatting a node's storage: identity of its directories and the first metadata.

Owns what `moldau storage format` does, whole. Invariant: a directory that has an identity, or a
metadata log, is never touched; `meta.properties`, which makes a directory count as formatted, is
written last.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from moldau.config import NodeConfig
from moldau.metadata.bootstrap import feature_records, initial_feature_levels
from moldau.metadata.features import KRAFT_VERSION
from moldau.protocol.types import random_topic_id, uuid_to_base64
from moldau.raft import (
    MetadataLogError,
    VoterDescription,
    VoterEndpoint,
    VoterSet,
    check_unformatted,
    write_bootstrap,
)
from moldau.runtime.clock import Clock
from moldau.runtime.filesystem import Filesystem
from moldau.storage.corrupt_file import CorruptFile
from moldau.storage.log_directory import LogDirectoryError, describe
from moldau.storage.meta_properties import (
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)


class FormatError(Exception):
    """Storage that cannot be formatted as asked; one line that says why. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class FormatPlan:
    """What is to be written: which directories, for which node of which cluster, at which levels.

    `is_voter` makes the node the first (and for now only) voter of a dynamic quorum (KIP-853);
    without it the voters come from `controller.quorum.voters`.
    """

    directories: tuple[str, ...]
    metadata_directory: str
    cluster_id: str
    node_id: int
    endpoints: tuple[VoterEndpoint, ...]
    feature_levels: Mapping[str, int]
    is_voter: bool = True

    @classmethod
    def from_config(
        cls, config: NodeConfig, cluster_id: str, feature_levels: Mapping[str, int] | None = None
    ) -> FormatPlan:
        """The plan for a node's configuration; the latest feature levels unless others are given.

        The levels are those of `metadata.bootstrap.initial_feature_levels`.
        """
        return cls(
            directories=config.log_directories,
            metadata_directory=config.metadata_log_directory,
            cluster_id=cluster_id,
            node_id=config.node_id,
            endpoints=tuple(
                VoterEndpoint(each.listener_name, each.host or "localhost", each.port)
                for each in config.controller_listeners
            ),
            feature_levels=feature_levels or initial_feature_levels(),
            is_voter=not config.quorum_voters,
        )


def random_cluster_id(random: random_module.Random) -> str:
    """A cluster id as `kafka-storage random-uuid` makes them."""
    return uuid_to_base64(random_topic_id(random))


def format_storage(
    filesystem: Filesystem, clock: Clock, random: random_module.Random, plan: FormatPlan
) -> list[str]:
    """Format every directory of the plan that has no identity; returns which ones. Blocks.

    When some directories are formatted already they must be this node's, and only the rest is
    formatted: that is how a disk is added.

    Raises:
        FormatError: nothing is left to format, a directory belongs to someone else, or it cannot be
            written.
    """
    try:
        wanted = _unformatted(filesystem, plan)
        if not wanted:
            names = ", ".join(plan.directories)
            raise FormatError(f"already formatted: {names}")
        ids = {path: UUID(int=random_topic_id(random).int) for path in wanted}
        if plan.metadata_directory in ids:
            check_unformatted(filesystem, plan.metadata_directory)
            _write_metadata(filesystem, clock, plan, ids[plan.metadata_directory])
        for path in wanted:
            filesystem.mkdirs(path)
            identity = MetaProperties(plan.cluster_id, plan.node_id, ids[path])
            write_meta_properties(filesystem, path, identity)
    except (CorruptFile, MetadataLogError, LogDirectoryError) as error:
        raise FormatError(str(error)) from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise FormatError(f"cannot format: {where}{describe(error)}") from error
    return wanted


def _unformatted(filesystem: Filesystem, plan: FormatPlan) -> list[str]:
    paths = dict.fromkeys((*plan.directories, plan.metadata_directory))
    wanted = []
    for path in paths:
        existing = read_meta_properties(filesystem, path) if filesystem.exists(path) else None
        if existing is None:
            wanted.append(path)
        elif existing.cluster_id != plan.cluster_id:
            raise FormatError(
                f"{path} is formatted for cluster {existing.cluster_id}, not {plan.cluster_id}"
            )
        elif existing.node_id != plan.node_id:
            raise FormatError(
                f"{path} is formatted for node {existing.node_id}, not {plan.node_id}"
            )
    return wanted


def _write_metadata(
    filesystem: Filesystem, clock: Clock, plan: FormatPlan, directory_id: UUID
) -> None:
    levels = dict(plan.feature_levels)
    kraft_version = levels.pop(KRAFT_VERSION, 0) if plan.is_voter else 0
    voters = VoterSet()
    if kraft_version > 0:
        voter = VoterDescription(plan.node_id, directory_id, plan.endpoints)
        voters = VoterSet((voter,), kraft_version)
    write_bootstrap(
        filesystem, plan.metadata_directory, feature_records(levels), voters, now_ms=clock.now_ms()
    )
