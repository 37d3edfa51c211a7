"""`moldau acls` against a running node that has an authorizer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moldau.testing import Cluster
from tests.system.cli.conftest import FAILED, WRONG_USAGE, Cli, table

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture(scope="module")
def cli() -> Iterator[Cli]:
    config = {"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS;User:root"}
    with Cluster(config=config) as running:
        yield Cli(running.bootstrap_server)


def test_entries_from_the_first_to_the_last(cli: Cli):
    made = cli.ok("acls", "create", "--allow", "alice", "--operation", "read", "--topic", "flights")
    row = ["Topic", "flights", "literal", "User:alice", "*", "Allow", "Read"]
    assert table(made)[1:] == [row]
    assert table(cli.ok("acls", "list", "--topic", "flights"))[1:] == [row]
    cli.ok(
        *("acls", "create", "--deny", "User:*", "--host", "10.0.0.1", "--operation", "All"),
        *("--topic", "fl", "--prefixed"),
    )
    assert cli.json("acls", "list", "--topic", "fl", "--pattern", "prefixed") == [
        {
            "resource": "Topic",
            "name": "fl",
            "pattern": "prefixed",
            "principal": "User:*",
            "host": "10.0.0.1",
            "permission": "Deny",
            "operation": "All",
        }
    ]
    assert len(cli.json("acls", "list", "--topic", "flights", "--pattern", "match")) == 2
    assert cli.json("acls", "list", "--principal", "bob") == []
    refused = cli.refused("acls", "delete", "--principal", "alice", status=WRONG_USAGE)
    assert "this would delete entry: User:alice may Read Topic flights; give --yes" in refused
    near = cli.refused("acls", "delete", "--principal", "alcie", "--yes")
    assert "no entry is like that; did you mean User:alice?" in near
    assert len(cli.json("acls", "list")) == 2
    deleted = cli.ok("acls", "delete", "--principal", "alice", "--yes")
    assert table(deleted)[1:] == [row]
    assert "no entry is like that" in cli.refused("acls", "delete", "--principal", "alice", "--yes")
    cli.ok("acls", "delete", "--all", "--yes")
    assert cli.json("acls", "list") == []


def test_what_producers_and_consumers_need(cli: Cli):
    cli.ok(
        *("acls", "create", "--allow", "maker", "--producer", "--topic", "out"),
        *("--transactional-id", "maker-1"),
    )
    cli.ok("acls", "create", "--allow", "reader", "--consumer", "--topic", "out", "--group", "g")
    rows = cli.json("acls", "list")
    told = {(each["principal"], each["resource"], each["operation"]) for each in rows}
    assert told == {
        ("User:maker", "Topic", "Write"),
        ("User:maker", "Topic", "Describe"),
        ("User:maker", "Topic", "Create"),
        ("User:maker", "TransactionalId", "Write"),
        ("User:maker", "TransactionalId", "Describe"),
        ("User:reader", "Topic", "Read"),
        ("User:reader", "Topic", "Describe"),
        ("User:reader", "Group", "Read"),
    }
    cli.ok("acls", "delete", "--all", "--yes")


def test_which_entry_decides(cli: Cli):
    ask = ("acls", "check", "--topic", "orders-eu", "--operation", "Describe")
    assert "allowed: super.users names User:root" in cli.ok(*ask, "--as", "root")
    refused = cli.end(*ask, "--as", "alice")
    assert (refused.status, refused.output) == (FAILED, "not allowed: no entry allows it\n")
    cli.ok(
        *("acls", "create", "--allow", "alice", "--operation", "Write", "--topic", "orders"),
        "--prefixed",
    )
    told = cli.json(*ask, "--as", "User:alice")
    assert told["allowed"]
    assert told["reason"] == "an entry allows what implies it"
    assert (told["entry"]["name"], told["entry"]["operation"]) == ("orders", "Write")
    cli.ok("acls", "create", "--deny", "*", "--operation", "All", "--topic", "*")
    assert cli.end(*ask, "--as", "alice").status == FAILED
    cli.ok("acls", "delete", "--all", "--yes")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("create", "--allow", "a", "--operation", "Read"), "on what?"),
        (("create", "--topic", "t", "--operation", "Read"), "to whom?"),
        (("create", "--topic", "t", "--allow", "a"), "what? give --operation"),
        (("create", "--topic", "", "--allow", "a", "--producer"), "an empty name"),
        (
            ("create", "--group", "g", "--allow", "a", "--operation", "Write"),
            "--operation 'Write' is none of All, Read, Delete, Describe,",
        ),
        (("create", "--group", "g", "--allow", "a", "--producer"), "say nothing about Group g"),
        (("create", "--cluster", "--allow", "a", "--operation", "All", "--prefixed"), "one name"),
        (("delete",), "which ones?"),
        (("delete", "--all", "--topic", "t"), "which ones?"),
        (("list", "--pattern", "regex"), "--pattern 'regex' is none of Any, Match, Literal"),
        (("check", "--topic", "t", "--as", "a"), "give --as, --operation and one resource"),
    ],
)
def test_mistakes_are_one_line(cli: Cli, arguments: tuple[str, ...], told: str):
    assert told in cli.refused("acls", *arguments, status=WRONG_USAGE)


def test_without_an_authorizer(cli: Cli, cluster: Cluster):
    said = cli.refused("acls", "list", "-b", cluster.bootstrap_server)
    assert "authorizer.class.name" in said
