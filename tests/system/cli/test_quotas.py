"""`moldau quotas` against a running node."""

from __future__ import annotations

import uuid

import pytest

from tests.system.cli.conftest import WRONG_USAGE, Cli, table


def test_quotas_from_the_first_to_the_last(cli: Cli):
    user = f"user-{uuid.uuid4().hex[:12]}"
    mine = ("--user", user)
    rates = ("--set", "producer_byte_rate=1048576", "--set", "request_percentage=12.5")
    assert cli.ok("quotas", "alter", *mine, *rates, "--validate-only") == "valid\n"
    assert cli.json("quotas", "describe", *mine) == []
    assert cli.ok("quotas", "alter", *mine, *rates) == "altered\n"
    cli.ok("quotas", "alter", *mine, "--client-id", "", "--set", "consumer_byte_rate=2e6")
    assert cli.json("quotas", "describe", *mine, "--strict") == [
        {
            "entity": {"user": user},
            "quotas": {"producer_byte_rate": 1048576, "request_percentage": 12.5},
        }
    ]
    assert table(cli.ok("quotas", "describe", *mine))[1:] == [
        [user, "(default)", "consumer_byte_rate", "2000000"],
        [user, "-", "producer_byte_rate", "1048576"],
        [user, "-", "request_percentage", "12.5"],
    ]
    cli.ok("quotas", "alter", *mine, "--client-id", "", "--delete", "consumer_byte_rate")
    cli.ok(
        "quotas", "alter", *mine, "--delete", "producer_byte_rate", "--delete", "request_percentage"
    )
    assert cli.json("quotas", "describe", *mine) == []


def test_addresses_have_quotas_of_their_own(cli: Cli):
    cli.ok("quotas", "alter", "--ip", "192.0.2.7", "--set", "connection_creation_rate=5")
    [shown] = cli.json("quotas", "describe", "--ip", "192.0.2.7")
    assert shown["quotas"] == {"connection_creation_rate": 5}
    cli.ok("quotas", "alter", "--ip", "192.0.2.7", "--delete", "connection_creation_rate")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--user a --set producer_byte_rate=-1", "must be greater than 0"),
        ("--user a --set producer_byte_rate=-1", "quotas of user a: "),
        (
            "--user= --client-id x --set producer_byte_rate=-1",
            "quotas of the default user, client-id x: ",
        ),
        ("--user a --set producer_byte_rat=1", "producer_byte_rat"),
        ("--ip example --set connection_creation_rate=1", "is no IP address"),
        ("--ip 192.0.2.1 --user a --set producer_byte_rate=1", "not for both"),
    ],
)
def test_what_the_controller_refuses(cli: Cli, arguments: str, said: str):
    assert said in cli.refused("quotas", "alter", *arguments.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("alter --set producer_byte_rate=1", "--user, --client-id or --ip"),
        ("alter --user a", "nothing to change"),
        ("alter --user a --set producer_byte_rate", "is not KEY=VALUE"),
        ("alter --user a --set producer_byte_rate=fast", "'fast' is not a number"),
        ("alter --user a --set x=1 --delete x", "set and deleted at once"),
        ("describe --strict", "--strict needs"),
    ],
)
def test_wrong_usage(cli: Cli, arguments: str, said: str):
    assert said in cli.refused("quotas", *arguments.split(), status=WRONG_USAGE)
