"""How commands find the cluster, what they say when they do not, and what every command shares."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

import moldau
from moldau.testing import Cluster
from tests.system.cli.conftest import WRONG_USAGE, Cli


def closed_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def test_the_option_wins_over_the_environment(cli: Cli, cluster: Cluster):
    environ = {"MOLDAU_BOOTSTRAP_SERVER": f"127.0.0.1:{closed_port()}"}
    listed = cli.ok("brokers", "list", "-b", cluster.bootstrap_server, environ=environ)
    assert cluster.bootstrap_server in listed


def test_what_a_file_of_properties_refers_to(cli: Cli, cluster: Cluster, tmp_path: Path):
    file = tmp_path / "client.properties"
    file.write_text(
        "config.providers=env\nbootstrap.servers=${env:ADDRESS_OF_IT}\nconfig.providers.env.class="
        "org.apache.kafka.common.config.provider.EnvVarConfigProvider\n"
    )
    arguments = ("brokers", "list", "--command-config", file)
    environ = {"ADDRESS_OF_IT": cluster.bootstrap_server}
    assert cluster.bootstrap_server in cli.ok(*arguments, environ=environ)
    refused = cli.refused(*arguments, status=WRONG_USAGE)
    assert "bootstrap.servers: ${env:ADDRESS_OF_IT}: the environment has no variable" in refused


def test_one_reachable_address_of_several_is_enough(cli: Cli, cluster: Cluster):
    several = f"127.0.0.1:{closed_port()},{cluster.bootstrap_server}"
    assert cluster.bootstrap_server in cli.ok("brokers", "list", "--bootstrap-server", several)


def test_a_file_of_client_properties(cli: Cli, cluster: Cluster, tmp_path: Path):
    file = tmp_path / "client.properties"
    file.write_text(
        f"# as Kafka's tools take it\nbootstrap.servers={cluster.bootstrap_server}\n"
        "client.id = operator\nsecurity.protocol: PLAINTEXT\n"
    )
    # The file's address wins over the environment's.
    environ = {"MOLDAU_BOOTSTRAP_SERVER": f"127.0.0.1:{closed_port()}"}
    assert cluster.bootstrap_server in cli.ok(
        "brokers", "list", "--command-config", file, environ=environ
    )
    file.write_text("client.id = operator\n")  # without servers: as without the file
    assert cluster.bootstrap_server in cli.ok("brokers", "list", "--command-config", file)
    file.write_text("security.protocol=SASL_SSL\n")
    refused = cli.refused("brokers", "list", "--command-config", file, status=WRONG_USAGE)
    assert "sasl.mechanism=GSSAPI" in refused
    assert "SCRAM-SHA-512" in refused
    file.write_text("security.protocol=SASL_TLS\n")
    refused = cli.refused("brokers", "list", "--command-config", file, status=WRONG_USAGE)
    assert "security.protocol='SASL_TLS'" in refused
    missing = tmp_path / "nothing.properties"
    refused = cli.refused("brokers", "list", "--command-config", missing, status=WRONG_USAGE)
    assert str(missing) in refused


@pytest.mark.parametrize("command", [["topics", "list"], ["brokers", "list", "--json"]])
def test_a_command_to_a_closed_port_ends_in_time_with_the_address(cli: Cli, command: list[str]):
    address = f"127.0.0.1:{closed_port()}"
    said = cli.refused(*command, "-b", address, "--timeout-ms", 300)
    assert address in said
    assert "300 ms" in said


@pytest.mark.parametrize("command", ["produce", "consume", "latency"])
def test_a_bench_at_a_closed_port_ends_with_the_address(cli: Cli, command: str):
    address = f"127.0.0.1:{closed_port()}"
    assert address in cli.refused("bench", command, "x", "-b", address, "--timeout-ms", 300)


def test_a_listener_that_never_speaks(cli: Cli):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert "300 ms" in cli.refused("topics", "list", "-b", address, "--timeout-ms", 300)


def test_a_host_that_does_not_exist(cli: Cli):
    said = cli.refused("topics", "list", "-b", "no-such-host.invalid", "--timeout-ms", 300)
    assert "no-such-host.invalid" in said


@pytest.mark.parametrize(
    "address", ["host:port", "host:70000", ":9092", "a..b:1", "host:-1", ",", "[::1:9092"]
)
def test_addresses_that_are_none(cli: Cli, address: str):
    said = cli.refused("topics", "list", "-b", address, "--timeout-ms", 300, status=WRONG_USAGE)
    assert "bootstrap" in said


def test_version_names_the_record_codec(cli: Cli):
    ended = cli.end("--version")
    assert ended.status == 0
    assert re.fullmatch(
        rf"moldau {re.escape(moldau.__version__)} \((native|pure Python) record codec\)\n",
        ended.output,
    )
    assert ("WARNING" in ended.errors) == ("native" not in ended.output)


def test_help_and_no_arguments(cli: Cli):
    helped = cli.ok("--help")
    for command in ("dev", "server", "storage", "topics", "configs", "brokers", "log", "bench"):
        assert re.search(rf"^\s+{command}\s+\S", helped, re.MULTILINE), command
    nothing = cli.end()
    assert nothing.status == WRONG_USAGE
    assert "Usage" in nothing.output + nothing.errors
