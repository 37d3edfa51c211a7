"""One secured node for all tests that leave its settings alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moldau.client import ScramMechanism, ScramUpsertion
from moldau.client.sync import Admin
from tests.system.security.nodes import AUTHORIZER, SecuredNode

SCRAM_USERS = {"carol": ScramMechanism.SCRAM_SHA_256, "dave": ScramMechanism.SCRAM_SHA_512}


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    """With an authorizer, whose super users are the node itself, alice and the users of SCRAM."""
    changed = {
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:ANONYMOUS;User:alice;User:carol;User:dave;User:orders-client",
    }
    with SecuredNode(tmp_path_factory.mktemp("secured"), changed) as running:
        with Admin(running.address("PLAINTEXT")) as admin:
            outcome = admin.alter_user_scram_credentials(
                [
                    ScramUpsertion(name, f"{name[0]}-secret", kind)
                    for name, kind in SCRAM_USERS.items()
                ]
            )
        assert set(outcome.values()) == {None}
        yield running
