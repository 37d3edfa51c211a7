"""What `--secure` makes: a cluster that stays secured over restarts and renewals."""

from __future__ import annotations

import datetime
import os
import ssl
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer as ConfluentProducer
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.client import KafkaError, NewTopic, TopicPartition
from moldau.client.sync import Admin, Consumer, Producer
from moldau.local import certificate_authority as module
from moldau.local.certificate_authority import (
    CertificateAuthority,
    CertificateError,
    summaries_of,
    summary_of,
)
from moldau.local.layout import PortHolder
from moldau.local.secure_files import SecureFiles, hosts_of
from moldau.testing import Cluster, NodeFailed
from tests.kit.waiting import until
from tests.system.documents.terminal import Terminal
from tests.system.processes import run_cli

HOST = "127.0.0.1"
SECRETS = ("admin.properties", "kcat.conf", "admin.pem", "authority/ca-key.pem")
BROKER = "node-1"


def settings_in(path: Path) -> dict[str, str]:
    lines = path.read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def can_list(settings: dict[str, str]) -> bool:
    try:
        with Admin(config=settings) as admin:
            admin.list_topics()
    except KafkaError:
        return False
    return True


def certificate_shown(address: str, trust: Path) -> str:
    """The certificate that the next connection is shown, in PEM."""
    host, _, port = address.rpartition(":")
    return ssl.get_server_certificate((host, int(port)), ca_certs=str(trust))


class Load(threading.Thread):
    """A producer that sends one record after the other."""

    def __init__(self, properties: dict[str, str], topic: str) -> None:
        super().__init__()
        self.sent = 0
        self.error: Exception | None = None
        self._producer = Producer(config={**properties, "retries": "0"})
        self._topic = topic
        self._ends = threading.Event()

    def run(self) -> None:
        try:
            with self._producer as producer:
                while not self._ends.is_set():
                    producer.send(self._topic, b"x")
                    self.sent += 1
        except KafkaError as error:
            self.error = error

    def wait_sent(self, count: int) -> None:
        goal = self.sent + count
        until(lambda: self.sent >= goal or self.error, what="records under way")

    def finish(self) -> None:
        self._ends.set()
        self.join()


@pytest.mark.system
@pytest.mark.timeout(240)
def test_certificates_are_renewed_under_load(tmp_path: Path) -> None:
    with Cluster(secure=True, directory=tmp_path) as cluster:
        files = SecureFiles(tmp_path)
        with Admin(config=cluster.client_properties) as admin:
            admin.create_topics([NewTopic("flights")])
        before = certificate_shown(cluster.bootstrap_server, files.trust)
        load = Load(cluster.client_properties, "flights")
        load.start()
        load.wait_sent(20)
        renewed = run_cli("certificates", "renew", tmp_path, BROKER)
        assert (renewed.status, renewed.errors) == (0, "")
        until(
            lambda: certificate_shown(cluster.bootstrap_server, files.trust) != before,
            what="the new certificate",
        )
        load.wait_sent(20)
        load.finish()
        # Without retries a lost connection would have failed a record.
        assert load.error is None
        with Consumer(config=cluster.client_properties) as consumer:
            [end] = consumer.end_offsets([TopicPartition("flights", 0)]).values()
        assert end == load.sent


def rotate(directory: Path) -> str:
    """The next step; what it says."""
    ended = run_cli("certificates", "rotate-authority", directory)
    assert (ended.status, ended.errors) == (0, "")
    return ended.output


@pytest.mark.system
@pytest.mark.timeout(240)
def test_the_authority_is_replaced_under_load(tmp_path: Path) -> None:
    with Cluster(2, secure=True, directory=tmp_path) as cluster:
        files, properties = SecureFiles(tmp_path), cluster.client_properties
        with Admin(config=properties) as admin:
            admin.create_topics([NewTopic("flights", 2, 2)])
        load = Load(properties, "flights")
        load.start()
        load.wait_sent(20)
        address = cluster.bootstrap_server.split(",")[0]
        shown = certificate_shown(address, files.trust)
        [old] = summaries_of(files.trust)
        stores = len([*tmp_path.glob("*/certificate.pem"), files.admin_certificate])
        kept = tmp_path / "kept.pem"
        kept.write_bytes(files.trust.read_bytes())
        of_old = {**files.controllers_settings(), "ssl.keystore.location": str(tmp_path / "o.pem")}
        (tmp_path / "o.pem").write_bytes(files.admin_certificate.read_bytes())

        assert "next: give" in rotate(tmp_path)
        assert certificate_shown(address, kept) == shown
        _, new = summaries_of(files.trust)
        assert can_list(properties)
        load.wait_sent(20)

        assert rotate(tmp_path).count(f"signed by {new.signed_by}") == stores
        until(
            lambda: certificate_shown(address, files.trust) != shown,
            what="the new certificate",
        )
        assert can_list(properties)
        assert can_describe(files.controllers_settings())
        assert can_describe(of_old)
        load.wait_sent(20)

        last = rotate(tmp_path)
        assert f"trusted: {new.signed_by} alone" in last
        assert "\ndone: " in last
        assert can_list(properties)
        assert can_describe(files.controllers_settings())
        assert not can_describe(of_old)
        assert not can_list({**properties, "ssl.truststore.location": str(kept)})
        load.wait_sent(20)
        load.finish()
        assert load.error is None
        cluster.stop(cluster.broker_ids[-1])
        cluster.restart(cluster.broker_ids[-1])
        assert can_list(properties)
        listed = run_cli("certificates", "show", tmp_path, "--details")
        assert old.signed_by not in listed.output
        assert listed.output.count(new.signed_by) == stores + 2  # its own name and signature


def can_describe(settings: dict[str, str]) -> bool:
    """Whether the controllers answer."""
    try:
        with Admin(config=settings) as admin:
            admin.describe_cluster()
    except KafkaError:
        return False
    return True


@pytest.fixture
def _generous_umask() -> Iterator[None]:
    """Every right that is missing is left out on purpose."""
    before = os.umask(0)
    yield
    os.umask(before)


def paths_for_others(home: Path) -> list[str]:
    """What is in a directory, itself included, that others than its owner have a right on."""
    paths = [home, *home.rglob("*")]
    return [str(path.relative_to(home)) for path in paths if path.lstat().st_mode & 0o077]


@pytest.mark.system
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("_generous_umask")
def test_a_secured_cluster_starts_again(tmp_path: Path) -> None:
    with Cluster(secure=True, directory=tmp_path) as cluster:
        properties = cluster.client_properties
        transactional = {**properties, "transactional.id": "t"}
        with Producer(config=transactional) as producer, producer.transaction():
            producer.send("flights", b"UA1545")
        for name in SECRETS:
            assert stat.S_IMODE(os.stat(tmp_path / name).st_mode) == 0o600, name
        store = tmp_path / BROKER / "certificate.pem"
        assert stat.S_IMODE(store.stat().st_mode) == 0o600
        text = store.read_bytes()
        assert paths_for_others(tmp_path / BROKER) == []
    data = tmp_path / BROKER / "data"
    assert paths_for_others(data) == [], "snapshots and what is written at the stop, too"
    for path in (data, *data.rglob("*")):  # as an earlier version left them
        path.chmod(0o755 if path.is_dir() else 0o644)
    with Cluster(secure=True, directory=tmp_path) as cluster:
        assert paths_for_others(data) == []
        log = (tmp_path / BROKER / "node.log").read_text()
        assert log.count("others than the owner had rights on") == 1
        assert (cluster.client_properties, store.read_bytes()) == (properties, text)
        assert cluster.active_controller_id() == 1
        with Consumer(
            config={**properties, "group.id": "board", "auto.offset.reset": "earliest"}
        ) as consumer:
            consumer.subscribe(["flights"])
            assert consumer.getone().value == b"UA1545"
        refused = {
            "no credentials": {"bootstrap.servers": cluster.bootstrap_server},
            "another password": {
                **properties,
                "sasl.jaas.config": properties["sasl.jaas.config"].replace(
                    settings_in(tmp_path / "kcat.conf")["sasl.password"], "guessed"
                ),
            },
            "another authority": {
                **properties,
                "ssl.truststore.location": str(
                    CertificateAuthority.create(tmp_path / "other", "other").certificate_path
                ),
            },
        }
        assert [what for what, given in refused.items() if can_list(given)] == []
        librdkafka = settings_in(tmp_path / "kcat.conf")
        assert "flights" in ConfluentProducer(librdkafka).list_topics(timeout=30).topics
        log = (tmp_path / BROKER / "node.log").read_text()
        assert librdkafka["sasl.password"] not in log
        assert "guessed" not in log


@pytest.mark.system
def test_a_directory_keeps_its_kind(tmp_path: Path) -> None:
    with Cluster(secure=True, directory=tmp_path):
        pass
    with pytest.raises(ValueError, match="is secured"), Cluster(directory=tmp_path):
        pass


@pytest.mark.system
@pytest.mark.timeout(300)
def test_a_secured_cluster_is_bootstrapped_and_restarted(tmp_path: Path) -> None:
    holder = PortHolder(HOST)
    try:
        base = next(
            port
            for port in range(20_000, 60_000, 7)
            if all(
                can_hold(holder, port + far)
                for far in (0, 1, 2, 100, 200, 201, 202, *range(300, 304))
            )
        )
    finally:
        holder.close()
    options = f"--secure --controllers 1 --brokers 3 --host {HOST} --base-port {base}"
    with Terminal(tmp_path) as terminal:
        serving = terminal.serve(f"moldau quorum bootstrap cluster {options} --start")
        http, *told = serving.wait_said(
            r"curl .* (https://.*/metrics)\n.*; try\n  (.*)\n  (.*)\n  (.*)\n"
        ).groups()
        assert http == f"https://{HOST}:{base + 300}/metrics"
        said = [terminal.run(command) for command in told]
        assert said[2] == "Prague\n"
        files = SecureFiles(tmp_path / "cluster")
        for far in range(300, 304):
            address = f"https://{HOST}:{base + far}/metrics"
            assert b"\nkafka_" in scraped(address, files.trust, files.admin_certificate)
            with pytest.raises(HTTPError, match="401"):
                scraped(address, files.trust)
        serving.interrupt()
        nodes = [
            terminal.serve(f"moldau server start {path}")
            for path in sorted(tmp_path.glob("cluster/*/server.properties"))
        ]
        assert len(nodes) == 4
        for node in nodes:
            node.wait_said("serves")
        assert terminal.run(told[2]) == "Prague\n"
        for node in nodes:
            node.kill()


def scraped(address: str, trust: Path, certificate: Path | None = None) -> bytes:
    """What a node shows to the client with a certificate, or without one."""
    context = ssl.create_default_context(cafile=str(trust))
    if certificate is not None:
        context.load_cert_chain(certificate)
    with urlopen(address, context=context, timeout=30) as answer:
        return bytes(answer.read())


def can_hold(holder: PortHolder, port: int) -> bool:
    try:
        holder.hold(port)
    except OSError:
        return False
    return True


# -- certificates --------------------------------------------------------------------------------


def test_what_a_certificate_says(tmp_path: Path) -> None:
    authority = CertificateAuthority.create(tmp_path / "authority", "Test")
    made = authority.issue(tmp_path / "a.pem", "a", "nodes", ["kafka-1.example.com", "::1"], 30)
    assert (made.subject, made.hosts) == ("CN=a,OU=nodes", ("kafka-1.example.com", "::1"))
    renewed = CertificateAuthority.load(tmp_path / "authority").renew(tmp_path / "a.pem", 60)
    assert (renewed.subject, renewed.hosts) == (made.subject, made.hosts)
    assert (renewed.expires_at - made.expires_at).days == 30
    assert summary_of(tmp_path / "a.pem") == renewed


class Interrupted(OSError):
    """The disk refuses one write, as when a process is killed before it."""


def test_a_rotation_goes_on_after_an_interruption_at_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is on disk always works: the authority that signed a key store is trusted, and can
    sign.
    """
    writes = {"left": 0}

    def counted(write: Callable[..., Any]) -> Callable[..., Any]:
        def one(*arguments: Any) -> Any:
            writes["left"] -= 1
            if writes["left"] == 0:
                raise Interrupted(5, "interrupted", "x")
            return write(*arguments)

        return one

    monkeypatch.setattr(module, "replace_file", counted(module.replace_file))
    monkeypatch.setattr(Path, "unlink", counted(Path.unlink))
    for point in count(1):
        directory = tmp_path / f"{point}"
        files = SecureFiles(directory)
        files.make("localhost", {"node-1": directory / "node-1"}, "", "")
        stores = [directory / "node-1" / "certificate.pem", files.admin_certificate]
        [first] = summaries_of(files.trust)
        outputs, interruptions = [], 0
        writes["left"] = point
        while not any("alone" in each for each in outputs):
            ended = CliRunner().invoke(app, ["certificates", "rotate-authority", str(directory)])
            interruptions += ended.exit_code
            outputs.append(ended.output)
            trusted = {each.signed_by for each in summaries_of(files.trust)}
            assert {summary_of(each).signed_by for each in stores} <= trusted
            CertificateAuthority.load(files.authority)
            assert len(outputs) <= 5, outputs
        writes["left"] = 0
        [last] = summaries_of(files.trust)
        assert last.signed_by != first.signed_by
        assert {summary_of(each).signed_by for each in stores} == {last.signed_by}
        assert sorted(each.name for each in files.authority.iterdir()) == ["ca-key.pem", "ca.pem"]
        if not interruptions:
            break
    assert point > 9


@pytest.mark.parametrize(
    ("host", "names"),
    [
        ("localhost", ("localhost", "127.0.0.1", "::1")),
        ("[::1]", ("localhost", "127.0.0.1", "::1")),
        ("kafka-1", ("kafka-1",)),
        ("10.0.0.1", ("10.0.0.1",)),
    ],
)
def test_what_a_node_is_called(host: str, names: tuple[str, ...]) -> None:
    assert hosts_of(host) == names


def test_what_cannot_be_a_certificate(tmp_path: Path) -> None:
    authority = CertificateAuthority.create(tmp_path / "authority", "Test")
    other = CertificateAuthority.create(tmp_path / "other", "Other")
    other.issue(tmp_path / "b.pem", "b", "clients", ())
    for wrong in (
        lambda: authority.issue(tmp_path / "a.pem", "x" * 65, "nodes", ()),
        lambda: authority.issue(tmp_path / "a.pem", "a", "nodes", ["žluť"]),
        lambda: authority.issue(tmp_path / "a.pem", "a", "nodes", (), 0),
        lambda: authority.renew(tmp_path / "missing.pem"),
        lambda: authority.renew(tmp_path / "b.pem"),
        lambda: CertificateAuthority.load(tmp_path),
    ):
        with pytest.raises(CertificateError):
            wrong()
    assert not (tmp_path / "a.pem").exists()
    (tmp_path / "authority" / "ca-key.pem").write_bytes(
        (tmp_path / "other" / "ca-key.pem").read_bytes()
    )
    with pytest.raises(CertificateError, match="not the key of ca"):
        CertificateAuthority.load(tmp_path / "authority")


def test_a_name_is_that_of_one_certificate(tmp_path: Path) -> None:
    """A client's name that is a node's would hide the node's certificate."""
    files = SecureFiles(tmp_path)
    homes = {f"{role} 1": tmp_path / f"{role}-1" for role in ("broker", "controller")}
    files.make("localhost", homes, "localhost:9092", "localhost:9093")
    for name in ("broker-1", "controller-1"):
        refused = run_cli("certificates", "create", tmp_path, name)
        store = homes[name.replace("-", " ")] / "certificate.pem"
        assert refused.status == 2
        assert f"{name} is the name of {store}" in refused.complaint
    assert not (tmp_path / "certificates").exists()
    assert run_cli("certificates", "create", tmp_path, "orders").status == 0
    # One that an earlier version has made.
    hidden = tmp_path / "certificates" / "broker-1.pem"
    CertificateAuthority.load(files.authority).issue(hidden, "broker-1", "clients", ())
    stores = [home / "certificate.pem" for home in homes.values()]
    stores += [files.admin_certificate, tmp_path / "certificates" / "orders.pem", hidden]
    before = {path: path.read_bytes() for path in stores}
    refused = run_cli("certificates", "renew", tmp_path, "orders", "broker-1")
    assert refused.status == 2
    assert f"broker-1 is the name of {stores[0]} and {hidden}" in refused.complaint
    assert {path: path.read_bytes() for path in stores} == before
    renewed = run_cli("certificates", "renew", tmp_path)
    assert renewed.status == 0, renewed
    assert not [path for path in stores if path.read_bytes() == before[path]]
    assert summary_of(stores[0]).subject == "CN=broker-1,OU=nodes"


# At 30 minutes a certificate could still be written: it is valid an hour before it is made.
@pytest.mark.parametrize("minutes", [30, 24 * 60])
def test_an_authority_that_has_expired_signs_nothing_and_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    files = SecureFiles(tmp_path)
    own = tmp_path / "broker-1" / "certificate.pem"
    end = module._now() - datetime.timedelta(minutes=minutes)
    begin = end - datetime.timedelta(days=module.AUTHORITY_DAYS)
    with monkeypatch.context() as patched:
        patched.setattr(module, "_now", lambda: begin)
        files.make("localhost", {"broker 1": own.parent}, "localhost:9092", "localhost:9093")
    before = own.read_bytes()
    for arguments in (("renew", tmp_path), ("create", tmp_path, "orders")):
        refused = run_cli("certificates", *arguments)
        assert refused.status == 1, refused
        assert f"the authority has expired on {end:%Y-%m-%d}" in refused.complaint
        assert "certificates rotate-authority` replaces it" in refused.complaint
    assert own.read_bytes() == before
    for _ in range(3):
        rotated = run_cli("certificates", "rotate-authority", tmp_path)
        assert rotated.status == 0, rotated
    assert run_cli("certificates", "renew", tmp_path).status == 0
    assert summary_of(own).expires_at > module._now()


def test_no_certificate_outlives_its_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        now = module._now() - datetime.timedelta(days=module.AUTHORITY_DAYS - 30)
        patched.setattr(module, "_now", lambda: now)
        authority = CertificateAuthority.create(tmp_path / "authority", "Test")
    [end] = [each.expires_at for each in summaries_of(authority.certificate_path)]
    assert authority.issue(tmp_path / "a.pem", "a", "clients", (), 365).expires_at == end
    assert authority.renew(tmp_path / "a.pem", 365).expires_at == end


# -- what the commands refuse --------------------------------------------------------------------


def test_wrong_commands_are_one_line(tmp_path: Path) -> None:
    CertificateAuthority.create(tmp_path / "made" / "authority", "Test")
    made = tmp_path / "made"
    for status, said, arguments in (
        (1, "no cluster that was made with --secure", ("show", tmp_path)),
        (2, "no certificate broker-9", ("renew", made, "broker-9")),
        (2, "letters, digits", ("create", made, "nodes")),
        (2, "letters, digits", ("create", made, "ANONYMOUS")),
        (2, "letters, digits", ("create", made, "a,OU=nodes")),
        (2, "--node and --host go together", ("create", made, "a", "--node")),
        (2, "--node and --host go together", ("create", made, "a", "--host", "h")),
    ):
        ended = run_cli("certificates", *arguments)
        assert ended.status == status, ended
        assert said in ended.complaint


def test_without_the_package_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "moldau.local.certificate_authority", None)
    with pytest.raises(NodeFailed, match=r"pip install 'moldau\[tls\]'"):
        Cluster(secure=True).start()
    for arguments in (["show"], ["renew"], ["create", "orders"]):
        command, *names = arguments
        ended = CliRunner().invoke(app, ["certificates", command, str(tmp_path), *names])
        assert ended.exit_code == 1, ended.output
        assert "pip install 'moldau[tls]'" in ended.stderr
