"""Habits of other tools, wrong places and half-done steps, played against the command.

Owns the tables and the world that they are made in: the node of all tests of the command, and a
secured cluster with a user who may do nothing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from moldau.client import ScramMechanism, ScramUpsertion
from moldau.client.sync import Admin
from moldau.local.certificate_authority import CertificateAuthority
from moldau.local.secure_files import SecureFiles, properties_text
from moldau.testing import Cluster
from tests.system.cli.conftest import FAILED, WRONG_USAGE, Cli
from tests.system.cli.mistakes import Mistake, play
from tests.system.processes import format_apart, properties

HABITS: Final = (
    Mistake(
        "kafka-topics --create", "topics --create --topic n", WRONG_USAGE, ("topics create n",)
    ),
    Mistake("kafka-topics --list", "topics --list", WRONG_USAGE, ("`moldau topics list`",)),
    Mistake(
        "--topic to describe", "topics describe --topic t", WRONG_USAGE, ("topics describe t",)
    ),
    Mistake("-t to describe", "topics describe -t t", WRONG_USAGE, ("topics describe t",)),
    Mistake("a name to list", "topics list t", WRONG_USAGE, ("topics describe t",)),
    Mistake("--topic to list", "topics list --topic t", WRONG_USAGE, ("topics describe t",)),
    Mistake("--topic to delete", "topics delete --topic t", WRONG_USAGE, ("topics delete t",)),
    Mistake("partitions behind the name", "topics create t 3", WRONG_USAGE, ("--partitions 3",)),
    Mistake("--zookeeper", "topics list --zookeeper z:1", WRONG_USAGE, ("-b HOST:PORT",)),
    Mistake("--broker-list", "produce t --broker-list {plain}", WRONG_USAGE, ("-b {plain}",), "a"),
    Mistake("console consumer", "consume --topic t", WRONG_USAGE, ("moldau consume t",)),
    Mistake(
        "its properties", "consume t --consumer.config f", WRONG_USAGE, ("--command-config f",)
    ),
    Mistake("consumer groups", "groups --describe --group g", WRONG_USAGE, ("groups describe g",)),
    Mistake("--group to describe", "groups describe --group g", WRONG_USAGE, ("describe g",)),
    Mistake("--group to reset", "groups reset-offsets --group g", WRONG_USAGE, ("-offsets g",)),
    Mistake(
        *("kafka-configs", "configs --describe --entity-type topics --entity-name t"),
        *(WRONG_USAGE, ("configs describe topics t",)),
    ),
    Mistake(
        *("--add-config", "configs alter topics t --add-config retention.ms=5"),
        *(WRONG_USAGE, ("configs alter topics t --set retention.ms=5",)),
    ),
    Mistake(
        *("kafka-acls", "acls --add --allow-principal User:a --operation Read --topic t"),
        *(WRONG_USAGE, ("acls create --allow User:a",)),
    ),
    Mistake("a script's name", "kafka-console-consumer.sh", WRONG_USAGE, ("moldau consume",)),
    Mistake("kcat -C", "-b {plain} -t t -C", WRONG_USAGE, ("moldau consume t",)),
    Mistake("kcat -P", "-P -b {plain} -t t", WRONG_USAGE, ("moldau produce t",), "a\n"),
    Mistake("kcat -L", "-L -b {plain}", WRONG_USAGE, ("moldau topics describe",)),
    Mistake("kcat -o", "consume taken -o beginning", WRONG_USAGE, ("--from-beginning",)),
    Mistake("kcat -c", "consume taken -c 5", WRONG_USAGE, ("--max-messages 5",)),
    Mistake("kcat -K", "produce taken -K :", WRONG_USAGE, ("--key-separator :",), "a:b\n"),
    Mistake("kcat -X", "consume taken -X a=b", WRONG_USAGE, ("--property a=b",)),
    Mistake("rpk topic consume", "topic consume taken", WRONG_USAGE, ("moldau consume taken",)),
    Mistake("rpk topic produce", "topic produce taken", WRONG_USAGE, ("moldau produce taken",)),
    Mistake("rpk cluster info", "cluster info", WRONG_USAGE, ("moldau brokers list",)),
    Mistake("rpk group seek", "group seek g --to start", WRONG_USAGE, ("reset-offsets g",)),
    Mistake("rpk add-partitions", "topic add-partitions t", WRONG_USAGE, ("--partitions",)),
    Mistake("the address first", "-b {plain} topics list", WRONG_USAGE, ("COMMAND … -b {plain}",)),
    Mistake("a shell's ls", "topics ls", WRONG_USAGE, ("moldau topics list",)),
    Mistake("help as a command", "topics help", WRONG_USAGE, ("moldau topics --help",)),
    Mistake("server without start", "server run {node}", WRONG_USAGE, ("server start {node}",)),
)
PLACES: Final = (
    Mistake("plaintext to TLS", "topics list -b {secured}", FAILED, ("{secured}", "TLS")),
    Mistake(
        *("TLS to plaintext", "topics list -b {plain} --command-config {admin}"),
        *(FAILED, ("{plain}", "TLS")),
    ),
    Mistake(
        *("TLS without a login", "topics list -b {secured} --command-config {no_login}"),
        *(FAILED, ("{secured}", "SASL")),
    ),
    Mistake(
        *("a wrong password", "topics list --command-config {wrong_password}"),
        *(FAILED, ("{secured}", "SCRAM")),
    ),
    Mistake(
        *("another authority", "topics list --command-config {other_authority}"),
        *(FAILED, ("{secured}", "certificate")),
    ),
    Mistake(
        *("no such authority", "topics list --command-config {no_authority}"),
        *(WRONG_USAGE, ("/no/ca.pem",)),
    ),
    Mistake(
        *("a secured controller's port", "topics list -b {secured_controller}"),
        *(FAILED, ("{secured_controller}", "TLS")),
    ),
    Mistake(
        *("a broker as a controller", "quorum status --bootstrap-controller {plain}"),
        *(FAILED, ("this is a broker's listener",)),
    ),
    Mistake("a URL", "topics list -b http://{plain}", WRONG_USAGE, ("HOST:PORT",)),
    Mistake("a space between two", "topics list -b '{plain} x:1'", WRONG_USAGE, ("HOST:PORT",)),
    Mistake(
        *("a node's file for a client", "topics list --command-config {node}"),
        *(WRONG_USAGE, ("process.roles", "nodes have it")),
    ),
    Mistake(
        "a client's file for a node",
        "server start {admin}",
        WRONG_USAGE,
        ("process.roles", "clients have"),
    ),
    Mistake("a directory for a file", "server start {home}", WRONG_USAGE, ("{home}",)),
    Mistake("one directory too deep", "dev --port 0 --data {home}/data", FAILED, ("{home}/data",)),
    Mistake("certificates elsewhere", "certificates show {home}", FAILED, ("--secure",)),
    Mistake(
        "a broker for a registry",
        "produce taken --value-format avro --value-schema id:1 --schema-registry http://{plain}",
        *(FAILED, ("http://{plain}",), "{}\n"),
    ),
    Mistake(
        "text for an avro schema",
        "produce taken --value-format avro --value-schema {text} --schema-registry http://{plain}",
        *(WRONG_USAGE, ("{text}",), "{}\n"),
    ),
)
HALF_DONE: Final = (
    Mistake(
        "formatted twice", "storage format -c {formatted} --standalone", FAILED, ("formatted",)
    ),
    Mistake(
        "formatted for another cluster",
        "storage format -c {formatted} -t AAAAAAAAAAAAAAAAAAAAAQ --standalone --ignore-formatted",
        *(FAILED, ("cluster",)),
    ),
    Mistake("one directory new", "server start {half}", FAILED, ("moldau storage format", "new")),
    Mistake("not a voter yet", "quorum transfer-leader 7", FAILED, ("no voter",)),
    Mistake("the last voter", "quorum remove-controller -i 1", FAILED, ("1",)),
    Mistake("no health socket", "server health {node}", WRONG_USAGE, ("moldau.health.socket",)),
    Mistake("a group in use, deleted", "groups delete active", FAILED, ("active", "NON_EMPTY")),
    Mistake(
        *("a group in use, moved", "groups reset-offsets active --all-topics --to-earliest"),
        *(FAILED, ("active", "stop its members")),
    ),
    Mistake(
        *("a group's topic in use", "groups delete-offsets active --topic busy"),
        *(FAILED, ("busy",)),
    ),
    Mistake(
        *("two targets", "groups reset-offsets g --all-topics --to-latest --to-offset 1"),
        *(WRONG_USAGE, ("--to-latest and --to-offset",)),
    ),
    Mistake("offsets of no topic", "groups reset-offsets g --to-latest", WRONG_USAGE, ("--topic",)),
    Mistake("a deleted topic, read", "consume gone --until-end", FAILED, ("no topic 'gone'",)),
    Mistake("a deleted topic, written", "produce gone", FAILED, ("gone", "--create"), "a\n"),
    Mistake("a deleted topic, changed", "topics alter gone --partitions 9", FAILED, ("gone",)),
    Mistake(
        *("no authorizer", "acls create --allow a --operation Read --topic t"),
        *(FAILED, ("authorizer.class.name",)),
    ),
    Mistake("no key of tokens", "tokens create", FAILED, ("log in by SASL",)),
    Mistake("no user of SCRAM", "users delete nemo", FAILED, ("nemo",)),
    Mistake("no login yet", "topics list --command-config {nemo}", FAILED, ("SCRAM",)),
    Mistake(
        "no ACL to write",
        "produce flights --command-config {ann}",
        FAILED,
        ("flights", "AUTHORIZ"),
        "a\n",
    ),
    Mistake(
        "no ACL to read", "consume flights --until-end --command-config {ann}", FAILED, ("flights",)
    ),
    Mistake(
        "no ACL to create", "topics create new --command-config {ann}", FAILED, ("AUTHORIZATION",)
    ),
    Mistake(
        "no ACL of a group", "groups describe board --command-config {ann}", FAILED, ("board",)
    ),
    Mistake("no ACL to see ACLs", "acls list --command-config {ann}", FAILED, ("AUTHORIZATION",)),
    Mistake(
        *("a consumer without a group", "acls create --allow a --consumer --topic t"),
        *(WRONG_USAGE, ("--group",)),
    ),
    Mistake(
        "acls for no one", "acls create --consumer --topic t --group g", WRONG_USAGE, ("whom",)
    ),
    Mistake("a plan for no broker", "topics reassign execute taken --replicas 7", FAILED, ("7",)),
    Mistake(
        *("quotas of a user by a typo", "quotas alter --user ann --set byte_rate=1"),
        *(FAILED, ("quotas of user ann", "byte_rate")),
    ),
    Mistake("no transaction", "transactions describe nothing", FAILED, ("nothing",)),
    Mistake(
        *("a feature too high", "features upgrade -f metadata.version=99"),
        *(FAILED, ("99", "7 to 30")),
    ),
)
MISTAKES: Final = (*HABITS, *PLACES, *HALF_DONE)

MEMBER = """
import sys
from moldau.client.sync import Consumer
with Consumer(sys.argv[1], group_id="active") as consumer:
    consumer.subscribe(["busy"])
    while not consumer.assignment():
        consumer.getmany(timeout_ms=100)
    consumer.commit()
    print("joined", flush=True)
    while True:
        consumer.getmany(timeout_ms=1_000)
"""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(secure=True, directory=tmp_path_factory.mktemp("secured")) as running:
        ann = ScramUpsertion("ann", "ann-secret", ScramMechanism.SCRAM_SHA_512)
        with Admin(config=running.client_properties) as admin:
            assert admin.alter_user_scram_credentials([ann]) == {"ann": None}
        yield running


@pytest.fixture(scope="module")
def active(cli: Cli) -> Iterator[None]:
    """A group with a member, in its own process: commands take over the streams of this one."""
    cli.ok("topics", "create", "busy")
    command = [sys.executable, "-c", MEMBER, cli.bootstrap]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as member:
        assert member.stdout is not None
        try:
            assert member.stdout.readline() == "joined\n"
            yield
        finally:
            member.kill()


@pytest.fixture(scope="module")
def names(
    cli: Cli,
    cluster: Cluster,
    secured: Cluster,
    active: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, str]:
    for topic in ("taken", "gone"):
        cli.end("topics", "create", topic)
    with Admin(cli.bootstrap) as admin:
        admin.delete_topics(["gone"])
    home = cluster.data_directory().parent
    return {
        "plain": cli.bootstrap,
        "home": str(home),
        "node": str(home / "server.properties"),
        "secured": secured.bootstrap_server,
        "secured_controller": secured.bootstrap_controllers,
        **files_in(tmp_path_factory.mktemp("places"), secured),
    }


def files_in(home: Path, secured: Cluster) -> dict[str, str]:
    """Files of clients and of nodes that are wrong somewhere."""
    admin = dict(secured.client_properties)
    login = admin["sasl.jaas.config"]
    other = CertificateAuthority.create(home / "other", "other").certificate_path
    ann = f'{login.partition(" username")[0]} username="ann" password="ann-secret";'
    changes = {
        "wrong_password": {"sasl.jaas.config": login.replace('password="', 'password="x')},
        "nemo": {"sasl.jaas.config": login.replace('"admin"', '"nemo"')},
        "ann": {"sasl.jaas.config": ann},
        "no_login": {"security.protocol": "SSL"},
        "other_authority": {"ssl.truststore.location": str(other)},
        "no_authority": {"ssl.truststore.location": "/no/ca.pem"},
    }
    found = {"admin": str(SecureFiles(secured.directory).admin_properties)}
    for name, changed in changes.items():
        path = home / f"{name}.properties"
        path.write_text(properties_text({**admin, **changed}))
        found[name] = str(path)
    text = home / "notes.txt"
    text.write_text("no schema, no log\n")
    for name in ("formatted", "half"):
        (home / name).mkdir()
        found[name] = str(properties(home / name))
        format_apart(Path(found[name]), "--standalone")
    half = home / "half"
    (half / "new").mkdir()
    properties(half, log_dirs=f"{half}/data,{half}/new")
    return {**found, "text": str(text)}


@pytest.mark.parametrize("mistake", [pytest.param(each, id=each.name) for each in MISTAKES])
def test_a_mistake_is_answered_by_one_line_that_names_it(
    cli: Cli, names: dict[str, str], mistake: Mistake
):
    assert play(cli, names, mistake) == []
