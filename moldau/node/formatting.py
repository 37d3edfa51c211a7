"""Formatting a node's storage: identity of its directories and the first metadata.

Owns what `moldau storage format` does, whole. Invariant: a directory that has an identity, or a
metadata log, is never touched; `meta.properties`, which makes a directory count as formatted, is
written last.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from moldau.config import ConfigError, NodeConfig
from moldau.config.listeners import parse_quorum_voters
from moldau.config.principals import reserved
from moldau.metadata.features import (
    KRAFT_VERSION,
    LATEST_KRAFT_LEVEL,
    LATEST_METADATA_LEVEL,
    METADATA_VERSION,
    SCRAM_LEVEL,
    feature_records,
    initial_feature_levels,
    metadata_release,
)
from moldau.protocol.metadata_records import UserScramCredentialRecord
from moldau.protocol.types import (
    RESERVED_TOPIC_IDS,
    random_topic_id,
    uuid_from_base64,
    uuid_to_base64,
)
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
from moldau.storage.faults import CorruptFile, describe
from moldau.storage.log_directory import LogDirectoryError
from moldau.storage.meta_properties import (
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)

INITIAL_CONTROLLERS = "--initial-controllers"


class FormatError(Exception):
    """Storage that cannot be formatted as asked; one line that says why. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class FormatPlan:
    """What is to be written: which directories, for which node of which cluster, at which levels.

    The voters of a dynamic quorum (KIP-853) are `initial_controllers`, or this node alone when
    `is_standalone`. With neither, no voters are written: they come from `controller.quorum.voters`,
    or are learned from the quorum (a broker, or a controller that joins later).
    """

    directories: tuple[str, ...]
    metadata_directory: str
    cluster_id: str
    node_id: int
    endpoints: tuple[VoterEndpoint, ...]
    feature_levels: Mapping[str, int]
    is_standalone: bool = True
    initial_controllers: tuple[VoterDescription, ...] = field(default=())
    users: tuple[UserScramCredentialRecord, ...] = field(default=(), repr=False)

    @classmethod
    def from_config(
        cls,
        config: NodeConfig,
        cluster_id: str,
        feature_levels: Mapping[str, int] | None = None,
        *,
        initial_controllers: Sequence[VoterDescription] | None = None,
        users: Sequence[UserScramCredentialRecord] = (),
    ) -> FormatPlan:
        """The plan for a node's configuration; the latest feature levels unless others are given.

        The levels are those of `metadata.features.initial_feature_levels`.

        Args:
            initial_controllers: the first voters, empty for none (`--no-initial-controllers`);
                None lets a controller without static voters be the only one.
            users: the first SCRAM credentials (`--add-scram`).

        Raises:
            FormatError: initial controllers that cannot be this node's; users at a level of
                `metadata.version` that has no records for them, or with a reserved name.
        """
        static, given = config.has_static_voters, tuple(initial_controllers or ())
        levels = feature_levels or initial_feature_levels()
        if static and given:
            raise FormatError(
                f"controller.quorum.voters and {INITIAL_CONTROLLERS} exclude each other; for "
                "voters that can change, set controller.quorum.bootstrap.servers instead"
            )
        if given and config.is_controller and config.node_id not in {v.voter_id for v in given}:
            ids = ", ".join(str(voter.voter_id) for voter in given)
            raise FormatError(
                f"{INITIAL_CONTROLLERS} names {ids} and not this controller, node.id "
                f"{config.node_id}; one that joins later is formatted with "
                "--no-initial-controllers"
            )
        if not static and config.is_controller and levels.get(KRAFT_VERSION, 0) < 1:
            raise FormatError(
                "kraft.version=0 needs its voters in controller.quorum.voters: leave the level out"
            )
        if users and levels.get(METADATA_VERSION, LATEST_METADATA_LEVEL) < SCRAM_LEVEL:
            raise FormatError(
                f"--add-scram needs metadata.version {metadata_release(SCRAM_LEVEL)} at least"
            )
        for user in users:
            if not config.principals.may_have_password(user.name):
                raise FormatError(f"--add-scram: {reserved(user.name)}")
        return cls(
            directories=config.log_directories,
            metadata_directory=config.metadata_log_directory,
            cluster_id=cluster_id,
            node_id=config.node_id,
            endpoints=tuple(
                VoterEndpoint(each.listener_name, each.host or "localhost", each.port)
                for each in config.advertised_controller_listeners
            ),
            feature_levels=levels,
            is_standalone=config.is_controller and not static and initial_controllers is None,
            initial_controllers=given,
            users=tuple(users),
        )

    @property
    def own_directory_id(self) -> UUID | None:
        """The id that the initial controllers give to this node's metadata directory."""
        for voter in self.initial_controllers:
            if voter.voter_id == self.node_id:
                return voter.directory_id
        return None


def parse_initial_controllers(text: str, listener_name: str) -> tuple[VoterDescription, ...]:
    """The voters of `ID@HOST:PORT:DIRECTORYID,…`, as kafka-storage takes them (KIP-853).

    Args:
        listener_name: the controller listener that the addresses belong to.

    Raises:
        FormatError: malformed, or an id that is named twice.
    """
    voters: list[VoterDescription] = []
    for element in filter(None, (part.strip() for part in text.split(","))):
        address, _, id_text = element.rpartition(":")
        try:
            directory_id = uuid_from_base64(id_text)
            [voter] = parse_quorum_voters(INITIAL_CONTROLLERS, [address])
        except (ConfigError, ValueError) as problem:
            port = " (a port from 1 to 65535)" if isinstance(problem, ConfigError) else ""
            raise FormatError(
                f"{INITIAL_CONTROLLERS}: {element!r} is not ID@HOST:PORT:DIRECTORYID{port}, the "
                "directory id as `moldau storage random-uuid` prints one"
            ) from None
        if directory_id in RESERVED_TOPIC_IDS or not voter.port:
            what = "a port of 0" if not voter.port else "a reserved directory id"
            raise FormatError(f"{INITIAL_CONTROLLERS}: {element!r} has {what}")
        for other in voters:
            if other.voter_id == voter.node_id:
                raise FormatError(f"{INITIAL_CONTROLLERS}: node {voter.node_id} is named twice")
            if other.directory_id == directory_id:
                raise FormatError(f"{INITIAL_CONTROLLERS}: directory {id_text} is named twice")
        endpoint = VoterEndpoint(listener_name, voter.host, voter.port)
        voters.append(VoterDescription(voter.node_id, directory_id, (endpoint,)))
    if not voters:
        raise FormatError(f"{INITIAL_CONTROLLERS} names no controller")
    return tuple(voters)


def random_cluster_id(random: random_module.Random) -> str:
    """A cluster id as `kafka-storage random-uuid` makes them."""
    return uuid_to_base64(random_topic_id(random))


def format_storage(
    filesystem: Filesystem,
    clock: Clock,
    random: random_module.Random,
    plan: FormatPlan,
    *,
    ignore_formatted: bool = False,
) -> list[str]:
    """Format every directory of the plan; returns which ones. Blocks.

    Args:
        ignore_formatted: directories that are this node's already are left alone instead of
            refused; that is how a disk is added. The result may then be empty.

    Raises:
        FormatError: a directory is formatted, belongs to another node, or cannot be written.
    """
    try:
        wanted = _unformatted(filesystem, plan, ignore_formatted=ignore_formatted)
        ids = {path: UUID(int=random_topic_id(random).int) for path in wanted}
        if plan.metadata_directory in ids:
            check_unformatted(filesystem, plan.metadata_directory)
            directory_id = plan.own_directory_id or ids[plan.metadata_directory]
            ids[plan.metadata_directory] = directory_id
            _write_metadata(filesystem, clock, plan, directory_id)
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


def _unformatted(filesystem: Filesystem, plan: FormatPlan, *, ignore_formatted: bool) -> list[str]:
    """What is left to format, after a look at everything. Raises: FormatError."""
    wanted, formatted = [], []
    for path in dict.fromkeys((*plan.directories, plan.metadata_directory)):
        existing = read_meta_properties(filesystem, path) if filesystem.exists(path) else None
        if existing is None:
            wanted.append(path)
        else:
            _check_identity(path, existing, plan)
            formatted.append(path)
    if formatted and not ignore_formatted:
        hint = "; --ignore-formatted formats the others" if wanted else ""
        raise FormatError(f"already formatted: {', '.join(formatted)}{hint}")
    return wanted


def _check_identity(path: str, existing: MetaProperties, plan: FormatPlan) -> None:
    if existing.cluster_id != plan.cluster_id:
        raise FormatError(
            f"{path} is formatted for cluster {existing.cluster_id}, not {plan.cluster_id}"
        )
    if existing.node_id != plan.node_id:
        raise FormatError(f"{path} is formatted for node {existing.node_id}, not {plan.node_id}")
    wanted_id = plan.own_directory_id
    if path == plan.metadata_directory and wanted_id not in (None, existing.directory_id):
        assert wanted_id is not None
        shown = "none" if existing.directory_id is None else uuid_to_base64(existing.directory_id)
        raise FormatError(
            f"{path} has directory id {shown}, {INITIAL_CONTROLLERS} says "
            f"{uuid_to_base64(wanted_id)}"
        )


def _write_metadata(
    filesystem: Filesystem, clock: Clock, plan: FormatPlan, directory_id: UUID
) -> None:
    levels = dict(plan.feature_levels)
    kraft_version = levels.pop(KRAFT_VERSION, LATEST_KRAFT_LEVEL)
    voters = plan.initial_controllers
    if plan.is_standalone:
        voters = (VoterDescription(plan.node_id, directory_id, plan.endpoints),)
    voter_set = VoterSet(voters, kraft_version) if voters else VoterSet()
    write_bootstrap(
        filesystem,
        plan.metadata_directory,
        [*feature_records(levels), *((user, 0) for user in plan.users)],
        voter_set,
        now_ms=clock.now_ms(),
    )
