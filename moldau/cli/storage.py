"""`moldau storage`: random-uuid, format, info; the same words as kafka-storage.

Must not need a running node. The engine is `node.formatting`.
"""

from __future__ import annotations

import os
import random
import secrets
from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.client_settings import key_values
from moldau.cli.output import fail, print_rows, refusing, say
from moldau.config import ConfigError, NodeConfig
from moldau.metadata.features import (
    KRAFT_VERSION,
    METADATA_VERSION,
    UnsupportedFeatureLevel,
    initial_feature_levels,
)
from moldau.protocol.types import uuid_from_base64, uuid_to_base64
from moldau.raft import METADATA_DIRECTORY, VoterDescription
from moldau.runtime.clock import SystemClock
from moldau.runtime.filesystem import OsFilesystem
from moldau.storage.faults import CorruptFile
from moldau.storage.meta_properties import read_meta_properties

if TYPE_CHECKING:
    from moldau.protocol.metadata_records import UserScramCredentialRecord

app = typer.Typer()

Config = Annotated[str, "--config -c", "The node's server.properties."]


@app.command("random-uuid")
def random_uuid() -> None:
    """Print a new random cluster id."""
    from moldau.node.formatting import random_cluster_id

    say(random_cluster_id(_random()))


@app.command("format")
def format_command(
    config: Config,
    cluster_id: Annotated[
        str | None, "--cluster-id -t", "From random-uuid; random by default."
    ] = None,
    standalone: Annotated[bool, "--standalone -s", "This node is the only voter."] = False,
    initial_controllers: Annotated[
        str | None,
        "--initial-controllers -I ID@HOST:PORT:DIRECTORYID,…",
        "The first voters; the same for all nodes.",
    ] = None,
    no_initial_controllers: Annotated[
        bool, "--no-initial-controllers -N", "This node joins a running quorum."
    ] = False,
    feature: Annotated[list[str] | None, "--feature -f", "FEATURE=LEVEL; may be repeated."] = None,
    release_version: Annotated[
        str | None, "--release-version -r", "The metadata version, as 4.2."
    ] = None,
    ignore_formatted: Annotated[
        bool, "--ignore-formatted -g", "Skip formatted directories."
    ] = False,
    add_scram: Annotated[
        list[str] | None,
        "--add-scram -S MECHANISM=[name=NAME,password=…]",
        "A first user for SASL/SCRAM; may be repeated.",
    ] = None,
) -> None:
    """Format a node's log directories for its cluster.

    They get their identity, and the cluster its first metadata.
    """
    from moldau.node.formatting import FormatError, FormatPlan, format_storage

    node_config = _load(config)
    _check_modes(node_config, standalone, initial_controllers, no_initial_controllers)
    filesystem = OsFilesystem()
    try:
        identity = _cluster_id(filesystem, node_config, cluster_id, standalone)
        levels = _levels(node_config, feature or [], release_version)
        voters = _voters(node_config, initial_controllers, standalone)
        users = _users(add_scram or [])
        plan = FormatPlan.from_config(
            node_config, identity, levels, initial_controllers=voters, users=users
        )
        formatted = format_storage(
            filesystem, SystemClock(), _random(), plan, ignore_formatted=ignore_formatted
        )
    except (FormatError, CorruptFile) as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or config}: {error.strerror or error}")
    for path in formatted:
        say(f"formatted {path} for node {plan.node_id} of cluster {plan.cluster_id}")
    if not formatted:
        say("nothing to format")


def _check_modes(config: NodeConfig, standalone: bool, initial: str | None, none: bool) -> None:
    """Kafka's rules of who votes; exits with status 2."""
    given = {
        "--standalone": standalone,
        "--initial-controllers": initial is not None,
        "--no-initial-controllers": none,
    }
    modes = [option for option, is_given in given.items() if is_given]
    if len(modes) > 1:
        fail(f"{' and '.join(modes)} exclude each other", status=2)
    if config.has_static_voters:
        if modes and modes[0] != "--no-initial-controllers":
            fail(
                f"{modes[0]} and controller.quorum.voters exclude each other; for voters that can "
                "change, set controller.quorum.bootstrap.servers instead",
                status=2,
            )
    elif not config.is_controller:
        if "--standalone" in modes:
            fail("--standalone is for controllers, process.roles has none", status=2)
    elif not modes:
        fail(
            "controller.quorum.voters is not set: say who votes with --standalone, "
            "--initial-controllers or --no-initial-controllers",
            status=2,
        )


def _users(given: list[str]) -> tuple[UserScramCredentialRecord, ...]:
    """The first users of the cluster; exits with status 2 where one is not described rightly."""
    from moldau.node.formatting import FormatError
    from moldau.node.initial_users import scram_records

    with refusing(FormatError):
        return scram_records(given, secrets.token_bytes)


def _voters(
    config: NodeConfig, initial: str | None, standalone: bool
) -> tuple[VoterDescription, ...] | None:
    """The first voters; None for this node alone. Raises: FormatError."""
    from moldau.node.formatting import parse_initial_controllers

    if initial is None:
        return None if standalone else ()
    return parse_initial_controllers(initial, config.controller_listener_names[0])


@app.command("info")
def info(config: Config, as_json: Annotated[bool, "--json", "Print JSON."] = False) -> None:
    """Show each log directory's identity and problems."""
    node_config = _load(config)
    filesystem = OsFilesystem()
    rows: list[dict[str, object]] = []
    for path in dict.fromkeys((*node_config.log_directories, node_config.metadata_log_directory)):
        identity = None
        problem = None
        try:
            identity = read_meta_properties(filesystem, path)
            if identity is None:
                problem = "not formatted"
            elif identity.node_id != node_config.node_id:
                problem = f"belongs to node {identity.node_id}"
        except (CorruptFile, OSError) as error:
            problem = str(error)
        directory_id = None if identity is None else identity.directory_id
        rows.append(
            {
                "directory": path,
                "cluster_id": identity and identity.cluster_id,
                "node_id": identity and identity.node_id,
                "directory_id": None if directory_id is None else uuid_to_base64(directory_id),
                "has_metadata_log": os.path.isdir(os.path.join(path, METADATA_DIRECTORY)),
                "problem": problem,
            }
        )
    cluster_ids = {row["cluster_id"] for row in rows if row["cluster_id"] is not None}
    if len(cluster_ids) > 1:
        for row in rows:
            row["problem"] = row["problem"] or "the directories belong to different clusters"
    print_rows(list(rows[0]), rows, as_json=as_json)
    if any(row["problem"] for row in rows):
        raise typer.Exit(1)


def _load(path: str) -> NodeConfig:
    with refusing(ConfigError):
        return NodeConfig.load(path, {}, os.environ)


def _cluster_id(
    filesystem: OsFilesystem, config: NodeConfig, text: str | None, standalone: bool
) -> str:
    """The given id; without one, that of a directory which has one already, else a fresh one.

    A fresh one is no use to a node that is not alone: its cluster has an id.
    """
    if text is None:
        from moldau.node.formatting import random_cluster_id

        for path in config.log_directories:
            identity = read_meta_properties(filesystem, path) if os.path.isdir(path) else None
            if identity is not None:
                return identity.cluster_id
        is_only_voter = config.is_controller and len(config.quorum_voters) == 1
        if not (config.is_broker and (standalone or is_only_voter)):
            fail("--cluster-id is needed: every node of a cluster is formatted with it", status=2)
        return random_cluster_id(_random())
    try:
        uuid_from_base64(text)
    except ValueError:
        fail(
            f"--cluster-id {text!r} is not a cluster id: 22 characters of URL-safe base64, "
            "as `moldau storage random-uuid` prints",
            status=2,
        )
    return text


def _levels(config: NodeConfig, pairs: list[str], release: str | None) -> dict[str, int]:
    """The feature levels to start with; exits with status 2 for one that is not supported."""
    overrides = {}
    for name, text in key_values(pairs, "--feature").items():
        if not (text.isascii() and text.isdigit()):
            fail(f"--feature {name}={text}: the level is a whole number", status=2)
        if name == METADATA_VERSION:
            fail(f"--feature {name}={text}: --release-version says that", status=2)
        overrides[name] = int(text)
    if config.has_static_voters and overrides.get(KRAFT_VERSION):
        fail("kraft.version above 0 and controller.quorum.voters exclude each other", status=2)
    with refusing(UnsupportedFeatureLevel):
        return initial_feature_levels(overrides, release=release)


def _random() -> random.Random:
    return random.Random(secrets.randbits(256))
