"""`moldau console` beside a cluster: its address, its limits, its end."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.kit.waiting import until
from tests.system.console.site import PASSWORD, Site

ENDS_S = 60
CLIENT = "moldau: HTTP client at "
"""Begins the lines about what clients get wrong."""


@contextmanager
def console(*arguments: object) -> Iterator[str]:
    """A console that serves, by its origin; it ends without a word of an error."""
    command = [sys.executable, "-m", "moldau", "console", "--listen", "localhost:0"]
    with (
        subprocess.Popen(
            [*command, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
        ending(process),
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline().strip()
        assert line.startswith("console: http://localhost:"), (line, process.stderr.read())
        yield line.removeprefix("console: ").removesuffix("/console/")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=ENDS_S)
        assert process.returncode == 0
        assert [line for line in errors.splitlines() if not line.startswith(CLIENT)] == []


@contextmanager
def ending(process: subprocess.Popen[str]) -> Iterator[None]:
    """It ends with the block, however that is left."""
    try:
        yield
    finally:
        process.kill()


def ask(origin: str, path: str, body: object = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        origin + path, data, {"Content-Type": "application/json"} if data else {}
    )
    try:
        with urllib.request.urlopen(request, timeout=ENDS_S) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.loads(refused.read())


def test_all_act_by_the_given_settings(open_site: Site) -> None:
    with console("-b", open_site.cluster.bootstrap_server) as origin:
        status, shown = ask(origin, "/api/v1/session")
        assert status == 200
        assert (shown["served_from"], shown["login"], shown["is_ours"]) == ("command", [], True)
        _, clusters = ask(origin, "/v3/clusters")
        assert [each["cluster_id"] for each in clusters["data"]] == [shown["cluster_id"]]


def test_people_log_in_at_a_secured_cluster(secure_site: Site, tmp_path: Path) -> None:
    own = dict(secure_site.cluster.client_properties)
    del own["sasl.jaas.config"]
    path = tmp_path / "client.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in own.items()))
    with console("--command-config", path, "--login") as origin:
        assert ask(origin, "/v3/clusters")[0] == 401
        body = {"username": "alice", "password": PASSWORD}
        status, shown = ask(origin, "/api/v1/session", body)
        assert (status, shown["principal"]) == (200, "User:alice")


def test_a_cluster_that_does_not_answer_is_a_line() -> None:
    command = [sys.executable, "-m", "moldau", "console", "-b", "localhost:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ENDS_S, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert "localhost:1" in line


async def test_a_body_without_end_takes_no_memory(open_site: Site) -> None:
    """The command has the bounds of a node's listener: a head without an end is cut."""
    with console("-b", open_site.cluster.bootstrap_server) as origin:
        port = int(origin.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("localhost", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 300_000)
        with suppress(ConnectionError):  # it is cut
            assert (await reader.read()).startswith((b"HTTP/1.0 400", b"HTTP/1.1 400"))
        writer.close()
        assert (await asyncio.to_thread(ask, origin, "/api/v1/session"))[0] == 200


@pytest.mark.parametrize("arguments", [(), ("--brokers", 2)])
def test_dev_prints_the_consoles_address(arguments: tuple[object, ...]) -> None:
    command = [sys.executable, "-m", "moldau", "dev", "--port", "0", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, ending(process):
        assert process.stdout is not None
        lines: list[str] = []
        while len([each for each in lines if each.startswith(("ready: ", "console: "))]) < 2:
            line = process.stdout.readline()
            assert line, lines
            lines.append(line.strip())
        [address] = [each for each in lines if each.startswith("console: ")]
        origin = address.removeprefix("console: ").removesuffix("/console/")

        def serves() -> bool:
            try:
                return ask(origin, "/api/v1/session")[1]["cluster_id"] is not None
            except OSError:
                return False

        until(serves, what="the console")
        process.send_signal(signal.SIGTERM)
        assert process.wait(ENDS_S) == 0
