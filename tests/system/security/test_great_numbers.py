"""The two mistakes of test_mistakes.py that come by the thousand: connections that never
authenticate, and ACLs. A client that nothing is wrong with is served through both.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from moldau.client import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclResourceType,
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    ConfigResourceType,
    InvalidRequest,
)
from moldau.client.sync import Admin
from tests.kit.waiting import until
from tests.system.security.front_ends import complaints_in
from tests.system.security.mistakes import Watched, Witness, client_hello, many_files
from tests.system.security.nodes import AUTHORIZER, HOST, SecuredNode

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

CONNECTIONS = 10_000
#: For a connection that has said nothing, or the first words of TLS.
BYTES_EACH = 40 * 1024
ACLS, AT_ONCE, USERS = 100_000, 5_000, 97
#: In the images of controller and broker, and the index of both authorizers.
BYTES_OF_ACL = 5 * 1024
LIMIT, PER_ADDRESS = "max.connections.per.ip", 100
TOPIC = AclResourceType.TOPIC
CHANGED = {
    "authorizer.class.name": AUTHORIZER,
    "super.users": "User:ANONYMOUS;User:alice",
    "sasl.enabled.mechanisms": "PLAIN",
    "socket.listen.backlog.size": "1000",
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SecuredNode]:
    with SecuredNode(tmp_path, CHANGED) as running:
        yield running
        assert complaints_in(running.log()) == []


def has_ended(peer: socket.socket) -> bool:
    """Without waiting."""
    try:
        while peer.recv(65_536):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


def test_ten_thousand_connections_that_never_authenticate(node: SecuredNode) -> None:
    hello = client_hello()
    with Witness(node) as witness, many_files() as most, ExitStack() as stack:
        count = min(CONNECTIONS, most - 500)
        print(f"{count} connections, {most} files at most")
        peers: list[socket.socket] = []
        with Watched(node, growth_bytes=count * BYTES_EACH) as memory:
            for number in range(count):
                listener = ("SASL_PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL")[number % 4]
                peer = stack.enter_context(socket.create_connection((HOST, node.port(listener))))
                if number % 4 == 3:
                    peer.sendall(hello)
                peer.setblocking(False)
                peers.append(peer)
                if number % 1_000 == 0:
                    memory.look()
            witness.goes_on()
            memory.look()
            print(f"{memory.peak_bytes / count:.0f} bytes for each")

            def all_have_ended() -> bool:
                memory.look()
                peers[:] = [each for each in peers if not has_ended(each)]
                return not peers

            until(all_have_ended, what="the node cuts all of them", deadline_s=180)
            witness.goes_on()
        _check_limit_of_one_address(node, stack, witness)


def _check_limit_of_one_address(node: SecuredNode, stack: ExitStack, witness: Witness) -> None:
    """`max.connections.per.ip`, set while the node runs, turns those above it away at once."""
    resource = ConfigResource(ConfigResourceType.BROKER, "1")
    with Admin(node.address("PLAINTEXT")) as admin:
        admin.alter_configs({resource: [ConfigChange(LIMIT, str(PER_ADDRESS))]})
        peers = []
        for _ in range(5 * PER_ADDRESS):
            peer = stack.enter_context(
                socket.create_connection((HOST, node.port("SASL_PLAINTEXT")))
            )
            peer.setblocking(False)
            peers.append(peer)
        until(lambda: sum(map(has_ended, peers)) >= 4 * PER_ADDRESS, what="those above the limit")
        witness.goes_on()
        admin.alter_configs({resource: [ConfigChange(LIMIT, None, ConfigOperation.DELETE)]})


def test_a_hundred_thousand_acls(node: SecuredNode) -> None:
    """Made, listed, there again after a restart, and deleted, ten thousand at most by a request."""
    bindings = [
        AclBinding(
            AclResourceType.TOPIC, f"t-{number}", f"User:u-{number % USERS}", AclOperation.READ
        )
        for number in range(ACLS)
    ]
    everything = AclFilter()

    def admin() -> Admin:
        return Admin(node.address("PLAINTEXT"), default_api_timeout_ms=300_000)

    with Witness(node) as witness, Watched(node, growth_bytes=ACLS * BYTES_OF_ACL) as memory:
        with admin() as first:
            for at in range(0, ACLS, AT_ONCE):
                first.create_acls(bindings[at : at + AT_ONCE])
                memory.look()
            witness.goes_on()
            assert set(first.describe_acls(everything)) == set(bindings)
            wanted = AclFilter(principal="User:u-5")
            assert len(first.describe_acls(wanted)) == sum(
                each.principal == wanted.principal for each in bindings
            )
        witness.goes_on()
        print(f"{memory.peak_bytes / ACLS:.0f} bytes for each")
    node.process.stop()
    node.process.start()
    node.process.wait_ready(180)
    with Witness(node) as witness, admin() as second:
        assert len(second.describe_acls(everything)) == ACLS
        witness.goes_on()
        with pytest.raises(InvalidRequest, match="at most 10000"):
            second.delete_acls([everything])
        for at in range(0, USERS, 5):
            users = range(at, min(at + 5, USERS))
            gone = second.delete_acls([AclFilter(principal=f"User:u-{each}") for each in users])
            assert len(gone) == sum(number % USERS in users for number in range(ACLS))
        assert second.describe_acls(everything) == []
        witness.goes_on()
