"""kafka-storage and `moldau storage` look at each other's directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.interop.java.tools import JavaTools
from tests.system.processes import run_cli

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
DIRECTORY_ID = "JEXY6aqzQY-32P5TStzaFg"
VOTERS = f"101@127.0.0.1:9093:{DIRECTORY_ID},102@127.0.0.1:9094:MvDxzVmcRsaTz33bUuRU6A"

#: Features that Kafka switches on in a new cluster and this release does not.
NOT_SERVED_YET = ("share.version", "streams.version")

#: Node ids, roles and what `format` needs for each.
NODES: list[tuple[int, str, tuple[str, ...]]] = [
    (1, "broker,controller", ("--standalone",)),
    (101, "controller", ("--initial-controllers", VOTERS)),
    (103, "controller", ("--no-initial-controllers",)),
    (2, "broker", ()),
]


def config_of(home: Path, node_id: int, roles: str) -> Path:
    listeners = ["PLAINTEXT://127.0.0.1:9092"] if "broker" in roles else []
    listeners += ["CONTROLLER://127.0.0.1:9093"] if "controller" in roles else []
    path = home / "server.properties"
    path.write_text(
        f"process.roles={roles}\nnode.id={node_id}\nlisteners={','.join(listeners)}\n"
        "controller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
        f"controller.quorum.bootstrap.servers=127.0.0.1:9093\nlog.dirs={home / 'data'}\n"
    )
    return path


def moldau(*arguments: object) -> str:
    done = run_cli(*arguments)
    assert done.status == 0, done.errors
    return done.output


def meta_properties(home: Path) -> dict[str, str]:
    lines = (home / "data" / "meta.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def metadata_of(path: Path) -> list[Any]:
    """Types and contents of the records of a checkpoint, without the times in them."""
    rows = [json.loads(line) for line in moldau("metadata", "dump", "--json", path).splitlines()]
    records = [row for row in rows if row["row"] in ("record", "control")]
    assert records
    return [
        (row["type"], {**row["data"], "lastContainedLogTimestamp": 0})
        for row in records
        if row["data"].get("name") not in NOT_SERVED_YET
    ]


@pytest.mark.parametrize(("node_id", "roles", "voters"), NODES)
def test_both_format_alike_and_accept_the_others_directories(
    java: JavaTools, tmp_path: Path, node_id: int, roles: str, voters: tuple[str, ...]
) -> None:
    homes = [tmp_path / "ours", tmp_path / "theirs"]
    for home in homes:
        home.mkdir()
    ours, theirs = (config_of(home, node_id, roles) for home in homes)
    moldau("storage", "format", "-t", CLUSTER_ID, "-c", ours, *voters)
    java.check("kafka-storage", "format", "-t", CLUSTER_ID, "-c", theirs, *voters)

    info = java.check("kafka-storage", "info", "-c", ours)
    assert "problem" not in info.output.lower()
    assert f"node.id={node_id}" in info.output
    refused = java.run("kafka-storage", "format", "-t", CLUSTER_ID, "-c", ours, *voters)
    assert refused.status == 1
    assert "already formatted" in refused.output + refused.errors
    [identity] = json.loads(moldau("storage", "info", "--json", "-c", theirs))
    assert (identity["cluster_id"], identity["node_id"]) == (CLUSTER_ID, node_id)
    assert identity["problem"] is None

    our_identity, their_identity = (meta_properties(home) for home in homes)
    if node_id == 101:
        assert our_identity["directory.id"] == DIRECTORY_ID
    else:
        our_identity.pop("directory.id")
        their_identity.pop("directory.id")
    assert our_identity == their_identity
    names = [
        "bootstrap.checkpoint",
        "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint",
    ]
    for name in names:
        paths = [home / "data" / name for home in homes]
        assert paths[0].exists() is paths[1].exists(), name
        if not paths[0].exists():
            continue
        decoded = java.check("kafka-dump-log", "--cluster-metadata-decoder", "--files", paths[0])
        assert "isvalid: true" in decoded.output
        if node_id != 1:  # a lone voter has a random directory id
            assert metadata_of(paths[0]) == metadata_of(paths[1])


def test_apache_kafka_reads_the_first_users(java: JavaTools, tmp_path: Path) -> None:
    config = config_of(tmp_path, 1, "broker,controller")
    user = "SCRAM-SHA-512=[name=admin,password=adm1n]"
    moldau("storage", "format", "-c", config, "--standalone", "--add-scram", user)
    found = java.check(
        "kafka-dump-log", "--cluster-metadata-decoder", "--files",
        tmp_path / "data" / "bootstrap.checkpoint",
    )  # fmt: skip
    assert '"type":"USER_SCRAM_CREDENTIAL_RECORD"' in found.output
    assert '"name":"admin","mechanism":2' in found.output
