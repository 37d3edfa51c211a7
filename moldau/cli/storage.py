"""`moldau storage`: random-uuid, format, info; the same words as kafka-storage.

Must not need a running node. The engine is `broker.node.formatting`.
"""

from __future__ import annotations

import os
import random
import secrets
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.cluster_options import key_values
from moldau.cli.output import fail, print_json, print_table
from moldau.config import ConfigError, NodeConfig
from moldau.metadata.bootstrap import UnsupportedFeatureLevel, initial_feature_levels
from moldau.protocol.types import uuid_from_base64, uuid_to_base64
from moldau.raft import METADATA_DIRECTORY
from moldau.runtime.clock import SystemClock
from moldau.runtime.filesystem import OsFilesystem
from moldau.storage.corrupt_file import CorruptFile
from moldau.storage.meta_properties import read_meta_properties

if TYPE_CHECKING:
    from moldau.broker.node.formatting import FormatPlan

app = typer.Typer(help="Format storage and look at it.", no_args_is_help=True)

Config = Annotated[
    str, typer.Option("--config", "-c", help="The node's server.properties.", show_default=False)
]


@app.command("random-uuid")
def random_uuid() -> None:
    """Print a fresh cluster id."""
    from moldau.broker.node.formatting import random_cluster_id

    typer.echo(random_cluster_id(_random()))


@app.command("format")
def format_command(
    config: Config,
    cluster_id: Annotated[
        str | None,
        typer.Option("--cluster-id", "-t", help="As random-uuid prints it; random when left out."),
    ] = None,
    standalone: Annotated[
        bool, typer.Option("--standalone", "-s", help="This node is the only voter.")
    ] = False,
    feature: Annotated[
        list[str] | None,
        typer.Option("--feature", "-f", help="FEATURE=LEVEL; may be repeated."),
    ] = None,
    release_version: Annotated[
        str | None,
        typer.Option("--release-version", "-r", help="Start at this metadata version, as 4.2."),
    ] = None,
    ignore_formatted: Annotated[
        bool,
        typer.Option("--ignore-formatted", "-g", help="It is fine when nothing is left to do."),
    ] = False,
) -> None:
    """Give the node's log directories an identity and the cluster its first metadata."""
    from moldau.broker.node.formatting import FormatError, FormatPlan, format_storage

    node_config = _load(config)
    if node_config.quorum_voters and standalone:
        fail("--standalone and controller.quorum.voters exclude each other", status=2)
    if not node_config.quorum_voters and not standalone:
        fail(
            "say who votes: --standalone makes this node the only voter (several voters come with "
            "the controller quorum)",
            status=2,
        )
    filesystem = OsFilesystem()
    try:
        plan = FormatPlan.from_config(
            node_config,
            _cluster_id(filesystem, node_config, cluster_id),
            _levels(feature or [], release_version),
        )
        if ignore_formatted and _all_formatted(filesystem, plan):
            typer.echo("nothing to format")
            return
        formatted = format_storage(filesystem, SystemClock(), _random(), plan)
    except (FormatError, CorruptFile) as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or config}: {error.strerror or error}")
    for path in formatted:
        typer.echo(f"formatted {path} for node {plan.node_id} of cluster {plan.cluster_id}")


@app.command("info")
def info(
    config: Config,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the identity of each log directory, and what is wrong with it."""
    node_config = _load(config)
    filesystem = OsFilesystem()
    rows: list[dict[str, Any]] = []
    for path in dict.fromkeys((*node_config.log_directories, node_config.metadata_log_directory)):
        row: dict[str, Any] = {
            "directory": path,
            "cluster_id": None,
            "node_id": None,
            "directory_id": None,
            "has_metadata_log": os.path.isdir(os.path.join(path, METADATA_DIRECTORY)),
            "problem": None,
        }
        try:
            identity = read_meta_properties(filesystem, path)
        except (CorruptFile, OSError) as error:
            row["problem"] = str(error)
        else:
            if identity is None:
                row["problem"] = "not formatted"
            else:
                row["cluster_id"], row["node_id"] = identity.cluster_id, identity.node_id
                if identity.directory_id is not None:
                    row["directory_id"] = uuid_to_base64(identity.directory_id)
                if identity.node_id != node_config.node_id:
                    row["problem"] = f"belongs to node {identity.node_id}"
        rows.append(row)
    cluster_ids = {row["cluster_id"] for row in rows if row["cluster_id"] is not None}
    if len(cluster_ids) > 1:
        for row in rows:
            row["problem"] = row["problem"] or "the directories belong to different clusters"
    if as_json:
        print_json(rows)
    else:
        print_table(list(rows[0]), (row.values() for row in rows))
    if any(row["problem"] for row in rows):
        raise typer.Exit(1)


def _load(path: str) -> NodeConfig:
    try:
        return NodeConfig.load(path, {}, os.environ)
    except ConfigError as error:
        fail(str(error), status=2)


def _cluster_id(filesystem: OsFilesystem, config: NodeConfig, text: str | None) -> str:
    """The given id; without one, that of a directory which has one already, else a fresh one."""
    if text is None:
        from moldau.broker.node.formatting import random_cluster_id

        for path in config.log_directories:
            identity = read_meta_properties(filesystem, path) if os.path.isdir(path) else None
            if identity is not None:
                return identity.cluster_id
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


def _levels(pairs: list[str], release: str | None) -> dict[str, int]:
    """The feature levels to start with; exits with status 2 for one that is not supported."""
    overrides = {}
    for name, text in key_values(pairs, "--feature").items():
        if not (text.isascii() and text.isdigit()):
            fail(f"--feature {name}={text}: the level is a whole number", status=2)
        overrides[name] = int(text)
    try:
        return initial_feature_levels(overrides, release=release)
    except UnsupportedFeatureLevel as error:
        fail(str(error), status=2)


def _all_formatted(filesystem: OsFilesystem, plan: FormatPlan) -> bool:
    paths = (*plan.directories, plan.metadata_directory)
    return all(
        filesystem.exists(path) and read_meta_properties(filesystem, path) is not None
        for path in paths
    )


def _random() -> random.Random:
    return random.Random(secrets.randbits(256))
