"""What the files of `moldau topics diff` and `apply` say, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from moldau.cli.cluster_files import Wanted, read_wanted
from moldau.client.admin.security import AclBinding
from moldau.protocol.access_control import Operation, PatternType, PermissionType, ResourceType


def read(tmp_path: Path, text: str) -> Wanted:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    return read_wanted(path)


def problems_of(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.raises(SystemExit) as end:
        read(tmp_path, text)
    assert end.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("moldau: ") for line in lines)
    return [line.partition("cluster.yaml:")[2] for line in lines]


def test_values_are_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DAYS_MS", "86400000")
    wanted = read(
        tmp_path,
        """
        topics:
          a: {partitions: 6, configs: {retention.ms: "${DAYS_MS}", preallocate: on, x: [b, c]}}
          b: {configs: {}}
          c: {replication-factor: 3}
        brokers: {default: {log.retention.ms: , log.cleaner.threads: 010}, 7: {}}
        """,
    )
    a, b, c = wanted.topics.values()
    assert (a.partition_count, a.replication_factor) == (6, None)
    assert a.configs == {"retention.ms": "86400000", "preallocate": "on", "x": "b,c"}
    assert (b.configs, c.configs, c.replication_factor) == ({}, None, 3)
    assert wanted.brokers == {
        "default": {"log.retention.ms": None, "log.cleaner.threads": "010"},
        "7": {},
    }


def test_entries_stand_for_all_pairs_of_names_and_operations(tmp_path: Path):
    wanted = read(
        tmp_path,
        """
        acls:
          User:a:
            - {allow: [Read, describe-configs], topic: [x, y]}
            - {deny: all, cluster: true, host: 10.0.0.7}
            - {allow: Read, group: z, pattern: prefixed}
          User:b: []
        quotas:
          - {user: "", client-id: c, request_percentage: 12.5}
        """,
    )
    topic, allow, deny = ResourceType.TOPIC, PermissionType.ALLOW, PermissionType.DENY
    read_of, configs_of = Operation.READ, Operation.DESCRIBE_CONFIGS
    cluster = (ResourceType.CLUSTER, "kafka-cluster", "User:a", Operation.ALL, deny, "10.0.0.7")
    group = (ResourceType.GROUP, "z", "User:a", read_of, allow, "*", PatternType.PREFIXED)
    assert wanted.acls == {
        "User:a": {
            *(AclBinding(topic, "x", "User:a", each) for each in (read_of, configs_of)),
            *(AclBinding(topic, "y", "User:a", each) for each in (read_of, configs_of)),
            AclBinding(*cluster),
            AclBinding(*group),
        },
        "User:b": set(),
    }
    assert wanted.quotas == {(("user", None), ("client-id", "c")): {"request_percentage": 12.5}}


def test_every_problem_of_a_file_has_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    problems = problems_of(
        tmp_path,
        """\
topics:
  orders: {partitons: 6}
  pay ments: {}
  a: {partitions: 0, configs: {retention.ms: }}
topic: {}
acls:
  alice: []
  User:bob:
    - {allow: Reed, topic: orders}
    - {allow: Read, deny: Write, topic: orders}
    - {allow: Read}
    - {allow: Read, cluster: true}
    - read everything
  User:carol:
brokers: {one: {}}
quotas:
  - {user: alice, producer_byte_rate: fast}
  - {producer_byte_rat: 1}
  - {user: alice}
""",
        capsys,
    )
    expected = (
        (2, "did you mean partitions?"),
        (3, "cannot be named so"),
        (4, "no whole number from 1"),
        (4, "for the default, leave the key out"),
        (5, "did you mean topics?"),
        (7, "a principal is like User:alice"),
        (9, "'Reed' is none of All, Read"),
        (10, "one of allow, deny is needed, and no more"),
        (11, "one of topic, group"),
        (12, "'Read' is none of All, Create"),
        (13, "a mapping is wanted here, not a single value"),
        (14, "[] is for a principal that has no ACLs"),
        (15, "a broker's id, or default"),
        (17, "'fast' is no number"),
        (18, "whose? user, client-id, ip"),
        (18, "did you mean producer_byte_rate?"),
        (19, "an earlier part of the file has it"),
    )
    for problem, (line, words) in zip(problems, expected, strict=True):
        assert problem.startswith(f"{line}: ")
        assert words in problem


def test_what_is_no_cluster_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for text, words in (
        ("topics: [", "not YAML"),
        ("- a", "a cluster file is a mapping, not a list"),
        ("topics: {a: {}, a: {}}", "is here twice (first on line 1)"),
        ("topics: {a: {}}\n---\ntopics: {a: {}}", "an earlier part of the file has it"),
        ("acls: {User:a: 7}", "a list is wanted here"),
        ("[" * 40, "nested more than 32 deep: this is no cluster file"),
    ):
        [problem] = problems_of(tmp_path, text, capsys)
        assert words in problem
    with pytest.raises(SystemExit):
        read_wanted(tmp_path / "none.yaml")
    assert "No such file" in capsys.readouterr().err
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(SystemExit):
        read_wanted(tmp_path / "latin")
    assert "no UTF-8" in capsys.readouterr().err
