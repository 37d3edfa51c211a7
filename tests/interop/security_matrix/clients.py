"""Python's clients and kcat behind one face each: write, write in transactions, read in a group.

Owns how each client's settings say an access, and where each says why it was refused. Must not hide
a client's behaviour: no retries, no fix-ups. Every client closes what it opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import shutil
import ssl
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import aiokafka
import confluent_kafka
from aiokafka.abc import AbstractTokenProvider

from moldau.client import KafkaError
from moldau.client.sync import Consumer, Producer
from tests.interop.kafka_python import kafka
from tests.interop.security_matrix.access import Access
from tests.kit.waiting import until
from tests.system.security.nodes import SCRAM_MODULE

DEADLINE_S = 60
REFUSED_WITHIN_MS = 1_000
"""How long a client tries at first whose library tries again for ever."""

LOST = b"of an aborted transaction"


class Client(Protocol):
    """A client library."""

    def write(self, access: Access, topic: str, values: Sequence[bytes]) -> None:
        """Write to a topic, and wait until all is acknowledged."""
        ...

    def transact(
        self, access: Access, topic: str, transactional_id: str, values: Sequence[bytes]
    ) -> None:
        """Abort a transaction with `LOST`, where the client can abort; commit one with `values`."""
        ...

    def read(self, access: Access, topic: str, group: str, count: int) -> list[bytes]:
        """The first committed records, as the only member of a group."""
        ...

    def refusal(self, access: Access, topic: str, group: str = "") -> str:
        """What the client says that may not write, or read where a group is named."""
        ...


def jaas(access: Access) -> str:
    """A delegation token for Java's login module, which ours understands."""
    return (
        f'{SCRAM_MODULE} required username="{access.name}" password="{access.password}" '
        'tokenauth="true";'
    )


class Moldau:
    """Our own."""

    def write(self, access: Access, topic: str, values: Sequence[bytes]) -> None:
        with Producer(**self._settings(access)) as producer:
            for value in values:
                producer.send(topic, value)

    def transact(
        self, access: Access, topic: str, transactional_id: str, values: Sequence[bytes]
    ) -> None:
        with Producer(transactional_id=transactional_id, **self._settings(access)) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(topic, LOST)
            producer.abort_transaction()
            with producer.transaction():
                for value in values:
                    producer.send(topic, value)

    def read(self, access: Access, topic: str, group: str, count: int) -> list[bytes]:
        with Consumer(
            group_id=group,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            **self._settings(access),
        ) as consumer:
            consumer.subscribe([topic])
            return [consumer.getone().value or b"" for _ in range(count)]

    def refusal(self, access: Access, topic: str, group: str = "") -> str:
        def attempt() -> None:
            if group:
                self.read(access, topic, group, 1)
            else:
                self.write(access, topic, [b"x"])

        return _said(attempt, KafkaError)

    def _settings(self, access: Access) -> dict[str, Any]:
        found: dict[str, Any] = {
            "bootstrap_servers": access.bootstrap,
            "security_protocol": access.protocol,
        }
        if access.trust is not None:
            found["ssl_truststore_location"] = str(access.trust)
        if access.certificate is not None:
            found["ssl_keystore_location"] = str(access.certificate)
        if access.mechanism:
            found["sasl_mechanism"] = access.mechanism
        if access.is_token:
            found["sasl_jaas_config"] = jaas(access)
        elif access.token_url:
            found["sasl_oauthbearer_token_endpoint_url"] = access.token_url
            found["sasl_oauthbearer_client_credentials_client_id"] = access.name
            found["sasl_oauthbearer_client_credentials_client_secret"] = access.password
        elif access.bearer:
            found["sasl_oauthbearer_token_provider"] = lambda: access.bearer
        elif access.mechanism:
            found |= {"sasl_username": access.name, "sasl_password": access.password}
        return found


def librdkafka_settings(access: Access) -> dict[str, Any]:
    """As librdkafka's configuration has an access, but for tokens that an application gives."""
    found: dict[str, Any] = {
        "bootstrap.servers": access.bootstrap,
        "security.protocol": access.protocol,
    }
    if access.trust is not None:
        found["ssl.ca.location"] = str(access.trust)
    if access.certificate is not None:
        found["ssl.certificate.location"] = str(access.certificate)
        found["ssl.key.location"] = str(access.certificate)
    if access.mechanism:
        found["sasl.mechanism"] = access.mechanism
    if access.token_url:
        found |= {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": access.name,
            "sasl.oauthbearer.client.secret": access.password,
            "sasl.oauthbearer.token.endpoint.url": access.token_url,
        }
    elif access.mechanism and access.mechanism != "OAUTHBEARER":
        found |= {"sasl.username": access.name, "sasl.password": access.password}
    return found


class Confluent:
    """confluent-kafka."""

    def write(self, access: Access, topic: str, values: Sequence[bytes]) -> None:
        producer = confluent_kafka.Producer(self._settings(access))
        for value in values:
            producer.produce(topic, value)
        assert producer.flush(DEADLINE_S) == 0

    def transact(
        self, access: Access, topic: str, transactional_id: str, values: Sequence[bytes]
    ) -> None:
        producer = confluent_kafka.Producer(
            {**self._settings(access), "transactional.id": transactional_id}
        )
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        producer.produce(topic, LOST)
        assert producer.flush(DEADLINE_S) == 0
        producer.abort_transaction(DEADLINE_S)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value)
        producer.commit_transaction(DEADLINE_S)

    def read(self, access: Access, topic: str, group: str, count: int) -> list[bytes]:
        consumer = confluent_kafka.Consumer(
            {
                **self._settings(access),
                "group.id": group,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        found: list[bytes] = []

        def read_all() -> bool:
            message = consumer.poll(0.1)
            if message is not None:
                assert message.error() is None, message.error()
                found.append(message.value() or b"")
            return len(found) == count

        try:
            consumer.subscribe([topic])
            until(read_all, what="the records", deadline_s=DEADLINE_S)
        finally:
            consumer.close()
        return found

    def refusal(self, access: Access, topic: str, group: str = "") -> str:
        said: list[str] = []

        def hear(error: Any) -> bool:
            if error is not None:
                said.append(f"{error.name()}: {error.str()}")
            return bool(said)

        with _heard("librdkafka", logging.INFO) as log:
            self._attempt(
                {
                    **self._settings(access),
                    "error_cb": hear,
                    "logger": logging.getLogger("librdkafka"),
                },
                topic,
                group,
                hear,
            )
        return "; ".join([*said, *log])

    def _attempt(
        self, settings: dict[str, Any], topic: str, group: str, hear: Callable[[Any], bool]
    ) -> None:
        """Try until `hear`, which gets errors and None, has heard enough."""
        client: Any
        if group:
            client = confluent_kafka.Consumer({**settings, "group.id": group})
            client.subscribe([topic])
        else:
            client = confluent_kafka.Producer(settings)
            client.produce(topic, b"x", on_delivery=lambda error, _message: hear(error))

        def is_refused() -> bool:
            message = client.poll(0.05)
            return hear(message.error() if group and message is not None else None)

        try:
            until(is_refused, what="the refusal", deadline_s=DEADLINE_S)
        finally:
            if group:
                client.close()
            else:
                client.purge()
                client.poll(0)

    def _settings(self, access: Access) -> dict[str, Any]:
        settings = librdkafka_settings(access)
        if access.bearer:

            def give(_: str) -> tuple[str, float, str, dict[str, str]]:
                # With an extension, which the node must ignore.
                return access.bearer, time.time() + 600, access.name, {"traceId": "1"}

            settings["oauth_cb"] = give
        return settings


def context_of(access: Access) -> ssl.SSLContext | None:
    """TLS for clients that take Python's own."""
    if access.trust is None:
        return None
    context = ssl.create_default_context(cafile=str(access.trust))
    if access.certificate is not None:
        context.load_cert_chain(access.certificate)
    return context


def _python_settings(access: Access, tokens: type) -> dict[str, Any]:
    """What aiokafka and kafka-python call the same."""
    found: dict[str, Any] = {
        "bootstrap_servers": access.bootstrap,
        "security_protocol": access.protocol,
        "ssl_context": context_of(access),
    }
    if access.mechanism:
        found["sasl_mechanism"] = access.mechanism
    if access.bearer:
        found["sasl_oauth_token_provider"] = tokens(access.bearer)
    elif access.mechanism == "OAUTHBEARER":
        found["sasl_oauth_token_provider"] = None
    elif access.mechanism:
        found |= {"sasl_plain_username": access.name, "sasl_plain_password": access.password}
    return found


class AioTokens(AbstractTokenProvider):  # type: ignore[misc]
    """Gives aiokafka one token."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


class AioKafka:
    """aiokafka."""

    def write(self, access: Access, topic: str, values: Sequence[bytes]) -> None:
        asyncio.run(self._write(access, topic, values))

    def transact(
        self, access: Access, topic: str, transactional_id: str, values: Sequence[bytes]
    ) -> None:
        asyncio.run(self._transact(access, topic, transactional_id, values))

    def read(self, access: Access, topic: str, group: str, count: int) -> list[bytes]:
        return asyncio.run(self._read(access, topic, group, count))

    def refusal(self, access: Access, topic: str, group: str = "") -> str:
        def attempt() -> None:
            if group:
                self.read(access, topic, group, 1)
            else:
                self.write(access, topic, [b"x"])

        with _heard("aiokafka") as log, warnings.catch_warnings():
            # A connection that is refused is left open: it is collected here, not in another test.
            warnings.simplefilter("ignore", ResourceWarning)
            # Its own checks of settings are assertions and ValueError.
            said = _said(attempt, aiokafka.errors.KafkaError, OSError, ValueError)
            gc.collect()
        return "; ".join([said, *log])

    async def _write(self, access: Access, topic: str, values: Sequence[bytes]) -> None:
        producer = aiokafka.AIOKafkaProducer(**_python_settings(access, AioTokens))
        try:
            await producer.start()
            for value in values:
                await producer.send_and_wait(topic, value)
        finally:
            await producer.stop()

    async def _transact(
        self, access: Access, topic: str, transactional_id: str, values: Sequence[bytes]
    ) -> None:
        producer = aiokafka.AIOKafkaProducer(
            transactional_id=transactional_id, **_python_settings(access, AioTokens)
        )
        await producer.start()
        try:
            await producer.begin_transaction()
            await producer.send_and_wait(topic, LOST)
            await producer.abort_transaction()
            async with producer.transaction():
                for value in values:
                    await producer.send_and_wait(topic, value)
        finally:
            await producer.stop()

    async def _read(self, access: Access, topic: str, group: str, count: int) -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            group_id=group,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            **_python_settings(access, AioTokens),
        )
        try:
            await consumer.start()
            async with asyncio.timeout(DEADLINE_S):
                return [(await consumer.getone()).value for _ in range(count)]
        finally:
            await consumer.stop()


@contextlib.contextmanager
def _closed_by_us(settings: dict[str, Any]) -> Iterator[None]:
    """kafka-python leaves what belongs to a client that it could not make, with sockets of refused
    connections, to the garbage collector.
    """
    from kafka.net.compat import KafkaNetClient

    made: list[Any] = []

    def make(**config: Any) -> Any:
        made.append(KafkaNetClient(**config))
        return made[-1]

    settings["kafka_client"] = make
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            yield
        finally:
            for client in made:
                client.close()
            made.clear()
            gc.collect()


def _kafka_python_tokens(token: str) -> Any:
    """Gives kafka-python one token."""
    from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonTokens

    class Tokens(KafkaPythonTokens):  # type: ignore[misc]
        def token(self) -> str:
            return token

    return Tokens()


class KafkaPython:
    """kafka-python."""

    def write(self, access: Access, topic: str, values: Sequence[bytes]) -> None:
        self._write(self._settings(access), topic, values)

    def transact(
        self, access: Access, topic: str, transactional_id: str, values: Sequence[bytes]
    ) -> None:
        producer = kafka.KafkaProducer(transactional_id=transactional_id, **self._settings(access))
        try:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(topic, LOST).get(DEADLINE_S)
            producer.abort_transaction()
            producer.begin_transaction()
            for value in values:
                producer.send(topic, value)
            producer.commit_transaction()
        finally:
            producer.close()

    def read(self, access: Access, topic: str, group: str, count: int) -> list[bytes]:
        return self._read(self._settings(access), topic, group, count)

    def refusal(self, access: Access, topic: str, group: str = "") -> str:
        settings = self._settings(access)

        def attempt() -> None:
            if group:
                self._read(settings, topic, group, 1)
            else:
                self._write(settings, topic, [b"x"])

        limit_ms = REFUSED_WITHIN_MS
        while True:
            settings["bootstrap_timeout_ms"] = limit_ms
            with _heard("kafka") as log, _closed_by_us(settings):
                said = _said(attempt, kafka.errors.KafkaError, OSError, ValueError)
            ends = [line for line in log if line.startswith("Bootstrap connection to")]
            # On a busy machine all that ended its connections may have been that limit.
            is_limit = "Unable to bootstrap" in said and all("tim" in end.lower() for end in ends)
            if not is_limit or limit_ms > DEADLINE_S * 1_000:
                return "; ".join([said, *log])
            limit_ms *= 2

    def _write(self, settings: dict[str, Any], topic: str, values: Sequence[bytes]) -> None:
        producer = kafka.KafkaProducer(**settings)
        try:
            for value in values:
                producer.send(topic, value).get(DEADLINE_S)
        finally:
            producer.close()

    def _read(self, settings: dict[str, Any], topic: str, group: str, count: int) -> list[bytes]:
        consumer = kafka.KafkaConsumer(
            topic,
            group_id=group,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            consumer_timeout_ms=DEADLINE_S * 1_000,
            **settings,
        )
        try:
            return [next(consumer).value for _ in range(count)]
        finally:
            consumer.close()

    def _settings(self, access: Access) -> dict[str, Any]:
        return _python_settings(access, _kafka_python_tokens)  # type: ignore[arg-type]


KCAT = shutil.which("kcat") or shutil.which("kafkacat")


class Kcat:
    """Debian's kcat."""

    def write(self, access: Access, topic: str, values: Sequence[bytes]) -> None:
        self._check(access, "-P", "-t", topic, lines=values)

    def transact(
        self, access: Access, topic: str, transactional_id: str, values: Sequence[bytes]
    ) -> None:
        """It commits at the end of its input, and aborts nothing."""
        option = f"transactional.id={transactional_id}"
        self._check(access, "-P", "-t", topic, "-X", option, lines=values)

    def read(self, access: Access, topic: str, group: str, count: int) -> list[bytes]:
        options = ("-q", "-c", str(count), "-X", "auto.offset.reset=earliest")
        isolation = ("-X", "isolation.level=read_committed")
        return self._check(access, "-G", group, *options, *isolation, topic).splitlines()

    def refusal(self, access: Access, topic: str, group: str = "") -> str:
        # For a token that nothing gives it, it waits until its message is too old.
        is_without_token = access.bearer and not access.unsecured
        limit = ("-X", f"message.timeout.ms={REFUSED_WITHIN_MS}") if is_without_token else ()
        done = (
            self._run(access, "-G", group, "-q", topic)
            if group
            else self._run(access, "-P", "-t", topic, *limit, lines=[b"x"])
        )
        assert done.returncode != 0, "it was not refused"
        return done.stderr.decode()

    def _check(self, access: Access, *arguments: str, lines: Sequence[bytes] = ()) -> bytes:
        done = self._run(access, *arguments, lines=lines)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def _run(
        self, access: Access, *arguments: str, lines: Sequence[bytes] = ()
    ) -> subprocess.CompletedProcess[bytes]:
        assert KCAT is not None
        settings = librdkafka_settings(access)
        if access.unsecured:
            settings["enable.sasl.oauthbearer.unsecure.jwt"] = "true"
            settings["sasl.oauthbearer.config"] = f"principal={access.unsecured}"
        options = [part for key, value in settings.items() for part in ("-X", f"{key}={value}")]
        return subprocess.run(
            [KCAT, *options, *arguments],
            input=b"".join(line + b"\n" for line in lines),
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )


def _said(attempt: Callable[[], None], *kinds: type[Exception]) -> str:
    """The exception that an attempt must end with."""
    try:
        attempt()
    except kinds as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("it was not refused")


@contextlib.contextmanager
def _heard(name: str, level: int = logging.WARNING) -> Iterator[list[str]]:
    """What a library logs, for clients that raise less than they know."""
    lines: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, ear = logging.getLogger(name), Ear(level)
    before = logger.level
    logger.addHandler(ear)
    logger.setLevel(level)
    try:
        yield lines
    finally:
        logger.removeHandler(ear)
        logger.setLevel(before)
