"""The hosts themselves: a cut that cuts nothing would make every test above it worthless."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.system.quorum.hosts import Hosts, why_not

PORT = 5000
pytestmark = pytest.mark.skipif(why_not() != "", reason=why_not())


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Hosts(["a", "b"]) as made:
        yield made


def test_a_link_works_until_it_is_cut_and_again_when_it_is_healed(hosts: Hosts):
    server = hosts.from_hub(socket.create_server, (hosts.address("hub"), PORT))
    with server:
        server.settimeout(10)

        def greet() -> bool:
            with server.accept()[0] as accepted:
                return accepted.recv(5) == b"hello"

        def say() -> None:
            code = (
                "import socket; "
                f"socket.create_connection(({hosts.address('hub')!r}, {PORT}), 1).sendall(b'hello')"
            )
            subprocess.run(
                hosts.command("a", [sys.executable, "-c", code]), check=True, capture_output=True
            )

        say()
        assert greet()
        hosts.cut_one_way("a", "hub")
        with pytest.raises(subprocess.CalledProcessError):
            say()
        hosts.heal()
        hosts.cut_one_way("hub", "a")
        with pytest.raises(subprocess.CalledProcessError):
            say()
        hosts.heal()
        say()
        assert greet()
