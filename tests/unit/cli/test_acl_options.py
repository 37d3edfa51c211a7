"""What `moldau acls create` needs to know before it asks a cluster."""

from __future__ import annotations

import pytest

from tests.kit.commands import run_here


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--consumer --topic flights", "--consumer needs --group too"),
        ("--consumer --group board", "--consumer needs --topic"),
        ("--producer --consumer --topic flights", "--consumer needs --group too"),
        ("--producer --transactional-id loader", "--producer needs --topic"),
        ("--consumer --topic flights --group g --cluster", "say nothing about Cluster"),
    ],
)
def test_what_a_producer_and_a_consumer_need_is_asked_for(options: str, said: str):
    """As kafka-acls: a consumer without a group would be refused by the group's coordinator."""
    ended = run_here("acls", "create", "--allow", "alice", *options.split())
    assert (ended.status, ended.output) == (2, "")
    assert said in ended.complaint
