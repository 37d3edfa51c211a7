"""Formatting a node's storage: who votes, what is written, and what is left alone."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from moldau.config import NodeConfig
from moldau.metadata.features import initial_feature_levels
from moldau.node.formatting import (
    FormatError,
    FormatPlan,
    format_storage,
    parse_initial_controllers,
)
from moldau.protocol.metadata_records import UserScramCredentialRecord
from moldau.protocol.types import uuid_to_base64
from moldau.raft import VoterDescription, VoterEndpoint, VoterSet, read_bootstrap
from moldau.raft.snapshot_files import BOOTSTRAP_SNAPSHOT, read_snapshot_file, snapshot_path
from moldau.runtime.filesystem import OsFilesystem
from moldau.storage.meta_properties import read_meta_properties
from tests.kit.manual_clock import ManualClock
from tests.storage.simulated_filesystem import SimulatedFilesystem

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
IDS = [UUID(int=(number << 100) + 12345) for number in range(1, 4)]
CONTROLLERS = ",".join(
    f"{100 + number}@host{number}:{9000 + number}:{uuid_to_base64(directory_id)}"
    for number, directory_id in enumerate(IDS, start=1)
)


def config_of(home: Path, roles: str, node_id: int, **changed: str) -> NodeConfig:
    listeners = {
        "broker": "PLAINTEXT://:9092",
        "controller": "CONTROLLER://host1:9001",
        "broker,controller": "PLAINTEXT://:9092,CONTROLLER://:9001",
    }
    values = {
        "process.roles": roles,
        "node.id": str(node_id),
        "listeners": listeners[roles],
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": "host1:9001",
        "log.dirs": f"{home / 'a'},{home / 'b'}",
        **{key.replace("_", "."): value for key, value in changed.items()},
    }
    return NodeConfig(values)


def formatted(config: NodeConfig, *, again: bool = False, **arguments: Any) -> list[str]:
    plan = FormatPlan.from_config(config, CLUSTER_ID, **arguments)
    return format_storage(
        OsFilesystem(), ManualClock(), random.Random(5), plan, ignore_formatted=again
    )


def voters_in(home: Path) -> VoterSet | None:
    """What `0-0.checkpoint` says, None when there is no such file."""
    path = snapshot_path(str(home / "a" / "__cluster_metadata-0"), BOOTSTRAP_SNAPSHOT)
    if not os.path.exists(path):
        return None
    return read_snapshot_file(OsFilesystem(), path, BOOTSTRAP_SNAPSHOT)[1]


def directory_id_of(directory: Path) -> UUID:
    identity = read_meta_properties(OsFilesystem(), str(directory))
    assert identity is not None
    assert identity.directory_id is not None
    return identity.directory_id


def content(home: Path) -> dict[str, bytes]:
    files = (path for path in home.rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in files}


def test_every_node_gets_the_same_initial_controllers_and_its_own_directory_id(tmp_path: Path):
    voters = parse_initial_controllers(CONTROLLERS, "CONTROLLER")
    assert voters[1] == VoterDescription(102, IDS[1], (VoterEndpoint("CONTROLLER", "host2", 9002),))
    nodes = [("controller", 101), ("controller", 102), ("broker", 1)]
    for roles, node_id in nodes:
        home = tmp_path / str(node_id)
        config = config_of(home, roles, node_id)
        assert formatted(config, initial_controllers=voters) == [str(home / "a"), str(home / "b")]
        assert voters_in(home) == VoterSet(voters, 1)
        assert read_bootstrap(OsFilesystem(), str(home / "a"))
    assert directory_id_of(tmp_path / "101" / "a") == IDS[0]
    assert directory_id_of(tmp_path / "102" / "a") == IDS[1]
    others = [tmp_path / "101" / "b", tmp_path / "1" / "a", tmp_path / "1" / "b"]
    assert not {directory_id_of(path) for path in others} & set(IDS)


def test_a_lone_controller_is_its_own_voter(tmp_path: Path):
    formatted(config_of(tmp_path, "broker,controller", 7))
    voters = voters_in(tmp_path)
    assert voters is not None
    assert voters.kraft_version == 1
    [voter] = voters.voters
    assert (voter.voter_id, voter.directory_id) == (7, directory_id_of(tmp_path / "a"))
    assert voter.endpoints == (VoterEndpoint("CONTROLLER", "localhost", 9001),)


@pytest.mark.parametrize(
    ("roles", "node_id", "changed", "arguments"),
    [
        ("broker", 1, {}, {}),
        ("broker", 1, {}, {"initial_controllers": ()}),
        ("broker", 1, {"controller_quorum_voters": "101@host1:9001"}, {}),
        ("controller", 104, {}, {"initial_controllers": ()}),
        ("controller", 101, {"controller_quorum_voters": "101@host1:9001,102@h:1"}, {}),
    ],
)
def test_no_voters_are_written_where_they_come_from_elsewhere(
    tmp_path: Path, roles: str, node_id: int, changed: Any, arguments: Any
):
    formatted(config_of(tmp_path, roles, node_id, **changed), **arguments)
    assert voters_in(tmp_path) is None
    assert read_bootstrap(OsFilesystem(), str(tmp_path / "a"))
    assert directory_id_of(tmp_path / "a") != directory_id_of(tmp_path / "b")


def test_formatting_twice_changes_nothing(tmp_path: Path):
    config = config_of(tmp_path, "broker,controller", 1)
    formatted(config)
    before = content(tmp_path)
    with pytest.raises(FormatError, match=r"^already formatted: .*/a, .*/b$"):
        formatted(config)
    assert formatted(config, again=True) == []
    assert content(tmp_path) == before


def test_what_is_formatted_survives_a_power_loss():
    filesystem = SimulatedFilesystem()
    config = config_of(Path("/deep/er"), "controller", 1, log_dirs="/deep/er/d")
    plan = FormatPlan.from_config(config, CLUSTER_ID)
    format_storage(filesystem, ManualClock(), random.Random(5), plan)
    before = filesystem.read_bytes("/deep/er/d/meta.properties")
    for seed in range(20):
        root = filesystem.image().after_power_loss(random.Random(seed))
        survived = SimulatedFilesystem(root)
        assert survived.read_bytes("/deep/er/d/meta.properties") == before


def test_a_disk_is_added_by_ignoring_what_is_formatted(tmp_path: Path):
    formatted(config_of(tmp_path, "broker,controller", 1))
    before = content(tmp_path)
    more = config_of(
        tmp_path, "broker,controller", 1, log_dirs=f"{tmp_path / 'a'},{tmp_path / 'c'}"
    )
    with pytest.raises(FormatError, match=r"/a; --ignore-formatted formats the others"):
        formatted(more)
    assert content(tmp_path) == before
    assert formatted(more, again=True) == [str(tmp_path / "c")]
    assert content(tmp_path).items() > before.items()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"node_id": 2}, "formatted for node 1, not 2"),
        ({"cluster_id": "A" * 21 + "Q"}, f"formatted for cluster {CLUSTER_ID}, not AAA"),
    ],
)
def test_directories_of_others_are_left_alone(tmp_path: Path, change: Any, said: str):
    formatted(config_of(tmp_path, "broker,controller", 1))
    before = content(tmp_path)
    config = config_of(tmp_path, "broker,controller", change.get("node_id", 1))
    plan = FormatPlan.from_config(config, change.get("cluster_id", CLUSTER_ID))
    with pytest.raises(FormatError, match=said):
        format_storage(OsFilesystem(), ManualClock(), random.Random(5), plan, ignore_formatted=True)
    assert content(tmp_path) == before


def test_another_directory_id_than_the_initial_controllers_say(tmp_path: Path):
    formatted(config_of(tmp_path, "controller", 101))
    before = content(tmp_path)
    voters = parse_initial_controllers(CONTROLLERS, "CONTROLLER")
    with pytest.raises(FormatError, match=rf"says {uuid_to_base64(IDS[0])}"):
        formatted(config_of(tmp_path, "controller", 101), again=True, initial_controllers=voters)
    assert content(tmp_path) == before


def test_a_metadata_log_without_identity_is_left_alone(tmp_path: Path):
    config = config_of(tmp_path, "broker,controller", 1)
    formatted(config)
    (tmp_path / "a" / "meta.properties").unlink()
    (tmp_path / "b" / "meta.properties").unlink()
    (tmp_path / "a" / "__cluster_metadata-0" / "quorum-state").write_text("{}")
    before = content(tmp_path)
    with pytest.raises(FormatError, match="holds a metadata log already"):
        formatted(config)
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no controller"),
        ("101", "is not ID@HOST:PORT:DIRECTORYID"),
        ("101@host1:9001", "is not ID@HOST:PORT:DIRECTORYID"),
        ("101@host1:9001:short", "is not ID@HOST:PORT:DIRECTORYID"),
        (f"x@host1:9001:{uuid_to_base64(IDS[0])}", "is not ID@HOST:PORT:DIRECTORYID"),
        (f"1@host1:99999:{uuid_to_base64(IDS[0])}", "a port from 1 to 65535"),
        (f"1@host1:0:{uuid_to_base64(IDS[0])}", "has a port of 0"),
        ("1@host1:9001:AAAAAAAAAAAAAAAAAAAAAA", "reserved directory id"),
        (f"{CONTROLLERS},101@other:1:{uuid_to_base64(UUID(int=1 << 90))}", "101 is named twice"),
        (f"{CONTROLLERS},104@other:1:{uuid_to_base64(IDS[0])}", "directory .* is named twice"),
    ],
)
def test_initial_controllers_that_make_no_sense(text: str, said: str):
    with pytest.raises(FormatError, match=said) as caught:
        parse_initial_controllers(text, "CONTROLLER")
    assert "\n" not in str(caught.value)


def test_an_ipv6_address_among_the_initial_controllers():
    text = f"3@[fe80::1]:9093:{uuid_to_base64(IDS[0])}"
    [voter] = parse_initial_controllers(text, "C")
    assert voter == VoterDescription(3, IDS[0], (VoterEndpoint("C", "fe80::1", 9093),))


@pytest.mark.parametrize(
    ("node_id", "changed", "arguments", "said"),
    [
        (104, {}, {"initial_controllers": CONTROLLERS}, "101, 102, 103 and not this controller"),
        (
            101,
            {"controller_quorum_voters": "101@host1:9001"},
            {"initial_controllers": CONTROLLERS},
            "controller.quorum.voters and --initial-controllers exclude each other",
        ),
        (
            101,
            {},
            {"feature_levels": initial_feature_levels({"kraft.version": 0})},
            "kraft.version=0 needs its voters in controller.quorum.voters",
        ),
    ],
)
def test_what_contradicts_the_configuration(
    tmp_path: Path, node_id: int, changed: Any, arguments: Any, said: str
):
    if "initial_controllers" in arguments:
        text = arguments["initial_controllers"]
        arguments = {"initial_controllers": parse_initial_controllers(text, "CONTROLLER")}
    with pytest.raises(FormatError, match=said):
        formatted(config_of(tmp_path, "controller", node_id, **changed), **arguments)
    assert content(tmp_path) == {}


def test_no_user_is_formatted_with_a_reserved_name(tmp_path: Path) -> None:
    config = config_of(
        tmp_path, "broker,controller", 1, **{"moldau.node.principals": "User:CN=*,OU=nodes"}
    )
    for name in ("nodes", "ANONYMOUS", "CN=broker-1,OU=nodes"):
        user = UserScramCredentialRecord(name=name, mechanism=1)
        with pytest.raises(FormatError, match=f"--add-scram: '{name}' is a reserved name"):
            FormatPlan.from_config(config, "cluster", users=[user])
    users = [UserScramCredentialRecord(name="alice", mechanism=1)]
    assert FormatPlan.from_config(config, "cluster", users=users).users == tuple(users)
