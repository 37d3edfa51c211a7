"""The options of a write: Spark's own for its Kafka sink, and what exactly-once needs besides.

Owns their names (`sinkId`), defaults and refusals, the settings of the clients that the sink makes,
and one spelling (by Hadoop's rules) for each place of a checkpoint. Must not connect to anything
nor look at a file system. Invariant: options that were parsed can be pickled, and are usable but
for what only a cluster knows.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Self

from moldau.client import (
    AdminConfig,
    ConfigurationError,
    ConsumerConfig,
    ProducerConfig,
    UnusedSetting,
)
from moldau.spark_connector.errors import InvalidOption
from moldau.spark_connector.options import ONLY_READ, OptionReader

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(/.*)?", re.S)
_DEFAULT_PORTS: Final[Mapping[str, str]] = {
    "hdfs": "8020",
    "webhdfs": "9870",
    "swebhdfs": "9871",
    "http": "80",
    "https": "443",
}
_HERE: Final = ("", "localhost")
DEFAULT_LEDGER_TOPIC: Final = "moldau-spark-ledger"
DEFAULT_TRANSACTION_TIMEOUT_MS: Final = 900_000
"""As long as brokers allow unless configured otherwise (`transaction.max.timeout.ms`)."""
MAX_SINK_ID_LENGTH: Final = 200
KNOWN: Final = (
    "topic",
    "includeHeaders",
    "includeTimestamp",
    "semantics",
    "sinkId",
    "txnId",
    "ledgerTopic",
    "transactions",
    "onReplayMismatch",
    "onNewQuery",
    "checkpointLocation",
    "queryName",
)
ELSEWHERE: Final[Mapping[str, str]] = dict.fromkeys(
    ONLY_READ, "it says what is read; a write takes rows from the DataFrame"
)
_BYTES_ONLY: Final = "rows are written as the bytes that they are; cast or serialize the columns"
REFUSED_KAFKA: Final[Mapping[str, str]] = {
    "key.serializer": _BYTES_ONLY,
    "value.serializer": _BYTES_ONLY,
    "transactional.id": (
        "the sink names its transactions itself, by `sinkId`; with semantics=at-least-once there "
        "are none"
    ),
    "transaction.two.phase.commit.enable": "use transactions=prepared, standard or auto",
}


def normal_location(location: str, working_directory: str) -> str:
    """The normal spelling of a path or URL; relative paths begin in `working_directory`."""
    text = location.strip()
    url = _URL.fullmatch(text)
    if url is None:
        return _normal_path(posixpath.join(working_directory, text))
    scheme, authority, path = url[1].lower(), url[2] or "", _normal_path(url[3] or "/")
    if scheme == "file" and authority.lower() in _HERE:
        return path
    user, at, host = authority.rpartition("@")
    host = host.lower()
    if scheme in _DEFAULT_PORTS:
        host = host.removesuffix(f":{_DEFAULT_PORTS[scheme]}")
    return f"{scheme}://{user}{at}{host}{path}".rstrip("/")


def _normal_path(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))


class Semantics(Enum):
    """What a write promises."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


class Transactions(Enum):
    """How transactions outlive their time limit."""

    AUTO = "auto"
    PREPARED = "prepared"
    STANDARD = "standard"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of one write.

    Attributes:
        topic: for all rows; None: the column `topic` says it.
        include_timestamp: the column `timestamp` becomes the records'; without it they get the
            time of writing, as in Spark's own sink.
        sink_id: names the writer across all restarts; None where it can only be derived.
        txn_id: names a batch write, which is then made once however often it is tried.
        may_differ: a batch that was committed before may come again with other rows.
        may_follow: a query may be new to a sink that another one has written.
        checkpoint_location: of a streaming query, where the options hold it.
        kafka: the clients' settings, by Kafka's names.
    """

    topic: str | None
    include_timestamp: bool
    semantics: Semantics
    sink_id: str | None
    txn_id: str | None
    ledger_topic: str
    transactions: Transactions
    may_differ: bool
    may_follow: bool
    checkpoint_location: str | None
    kafka: Mapping[str, str]

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """From what Spark hands over. Raises: InvalidOption: unknown, misplaced, refused, or not a
        value that the option can have
        """
        reader = OptionReader(
            given, known=KNOWN, elsewhere=ELSEWHERE, refused_kafka=REFUSED_KAFKA, what="sink"
        )
        reader.boolean("includeHeaders", False)  # as in Spark's sink: the column decides
        made = cls(
            topic=_named(reader, "topic"),
            include_timestamp=reader.boolean("includeTimestamp", False),
            semantics=Semantics(
                reader.choice("semantics", "exactly-once", *(each.value for each in Semantics))
            ),
            sink_id=_named(reader, "sinkId", MAX_SINK_ID_LENGTH),
            txn_id=_named(reader, "txnId", MAX_SINK_ID_LENGTH),
            ledger_topic=_named(reader, "ledgerTopic") or DEFAULT_LEDGER_TOPIC,
            transactions=Transactions(
                reader.choice("transactions", "auto", *(each.value for each in Transactions))
            ),
            may_differ=reader.choice("onReplayMismatch", "fail", "fail", "skip") == "skip",
            may_follow=reader.choice("onNewQuery", "allow", "allow", "fail") == "allow",
            checkpoint_location=reader.text("checkpointLocation"),
            kafka=reader.kafka_settings(),
        )
        made._check()
        return made

    def _check(self) -> None:
        if self.topic == self.ledger_topic:
            raise InvalidOption(
                f"topic={self.topic!r}: sinks keep their decisions there (ledgerTopic); rows of "
                "others would destroy them"
            )
        if self.semantics is Semantics.EXACTLY_ONCE:
            for key, needed in (("enable.idempotence", ("true",)), ("acks", ("all", "-1"))):
                value = self.kafka.get(key)
                if value is not None and value.strip().lower() not in needed:
                    raise InvalidOption(
                        f"kafka.{key}={value!r}: exactly-once needs {needed[0]}; leave it out, or "
                        "write with semantics=at-least-once"
                    )
        elif self.txn_id is not None:
            raise InvalidOption("txnId: a write that is made once needs semantics=exactly-once")
        if self.transactions is Transactions.PREPARED and "transaction.timeout.ms" in self.kafka:
            raise InvalidOption(
                "kafka.transaction.timeout.ms: transactions=prepared have no time limit; leave it "
                "out, or choose transactions=standard"
            )
        try:
            if self.semantics is Semantics.EXACTLY_ONCE:
                self.producer_config(transactional_id="any")
            else:
                self.producer_config()
            self.admin_config()
            self.consumer_config()
        except ConfigurationError as error:
            raise InvalidOption(f"kafka.{error}") from error

    # -- the sink's id ---------------------------------------------------------------------------

    def stream_sink_id(self) -> str:
        """The sink's id for a streaming query.

        A relative location is meant from this process's directory, as Spark's local file system
        means it: the process that plans is started in the driver's. Raises: InvalidOption: neither
        `sinkId` nor `checkpointLocation` is among the options
        """
        if self.sink_id is not None:
            return self.sink_id
        if not self.checkpoint_location:
            raise InvalidOption(
                "sinkId is missing: it names the sink across restarts. It can be derived from the "
                "option checkpointLocation, which this write does not have (a location from the "
                "session's configuration is not shown to sinks)"
            )
        return f"moldau-{_digest(normal_location(self.checkpoint_location, os.getcwd()))}"

    def batch_sink_id(self, query_id: str) -> str:
        """The sink's id for a batch write: `sinkId`, else one derived from the query id."""
        return self.sink_id or f"moldau-batch-{_digest(query_id)}"

    # -- clients ---------------------------------------------------------------------------------

    def producer_config(self, **settings: object) -> ProducerConfig:
        """For a producer; `settings` (with underscores) win."""
        given: dict[str, object] = dict(self.kafka)
        if "max.block.ms" not in given and "default.api.timeout.ms" in given:
            given["max.block.ms"] = given["default.api.timeout.ms"]
        if not settings.get("transaction_two_phase_commit_enable"):
            given.setdefault("transaction.timeout.ms", DEFAULT_TRANSACTION_TIMEOUT_MS)
        else:
            given.pop("transaction.timeout.ms", None)
        given |= {name.replace("_", "."): value for name, value in settings.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnusedSetting)  # those of the other clients
            return ProducerConfig.from_properties(given)

    def admin_config(self) -> AdminConfig:
        # With `retries` its calls outlast a restart, also those of a client that has just begun.
        return AdminConfig.from_properties({"retries": 2**31 - 1, **_of(AdminConfig, self.kafka)})

    def consumer_config(self, **settings: object) -> ConsumerConfig:
        """For a consumer without a group; `settings` (with underscores) win."""
        given: dict[str, object] = _of(ConsumerConfig, self.kafka)
        for name in ("group.id", "enable.auto.commit"):
            given.pop(name, None)
        given |= {name.replace("_", "."): value for name, value in settings.items()}
        return ConsumerConfig.from_properties(given)


def _of(
    kind: type[AdminConfig] | type[ConsumerConfig], given: Mapping[str, str]
) -> dict[str, object]:
    return {name: value for name, value in given.items() if name.replace(".", "_") in kind.KEYS}


def _named(reader: OptionReader, name: str, longest: int = 249) -> str | None:
    given = reader.text(name)
    if given is None:
        return None
    if not given.strip() or len(given) > longest or not given.isprintable():
        raise InvalidOption(f"{name}={given!r}: 1 to {longest} printable characters")
    return given


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]
