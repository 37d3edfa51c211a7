"""Java's producer and consumer, and Kafka's tools, with an access in a file of properties.

Owns the files. Must not know what the tools are asked for.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.interop.java.tools import JavaTools, Outcome
from tests.interop.security_matrix.access import Access
from tests.interop.security_matrix.clients import jaas
from tests.interop.security_matrix.front import BEARER, BEARER_MODULE
from tests.system.security.nodes import PLAIN_MODULE, SCRAM_MODULE

REFUSED_WITHIN_MS: Final = 3_000
"""Where the node says nothing to the client."""

TOOL_WITHIN_MS: Final = 60_000


class JavaClient:
    """Kafka's own producers and consumers, as its tools run them."""

    def __init__(self, tools: JavaTools, home: Path) -> None:
        self._tools = tools
        self._home = home
        self._files: dict[Access, Path] = {}

    def tool(self, name: str, access: Access, *arguments: object, stdin: bytes = b"") -> Outcome:
        """Run a tool to its end, whatever its exit status."""
        where = ("--bootstrap-server", access.bootstrap, "--command-config", self.file(access))
        return self._tools.run(name, *where, *arguments, stdin=stdin)

    def check(self, name: str, access: Access, *arguments: object, stdin: bytes = b"") -> str:
        """Run a tool that must succeed; what it prints."""
        done = self.tool(name, access, *arguments, stdin=stdin)
        said = done.output + done.errors
        # Most tools end with 0 after an exception that they have printed.
        assert done.status == 0, said
        assert "Exception" not in said, said
        return said

    def write(self, access: Access, topic: str, values: Sequence[bytes]) -> None:
        lines = b"".join(value + b"\n" for value in values)
        self.check("kafka-console-producer", access, "--topic", topic, stdin=lines)

    def transact(
        self, access: Access, topic: str, transactional_id: str, values: Sequence[bytes]
    ) -> None:
        """The tool commits only: a transaction for each value."""
        for value in values:
            payload = self._home / "payload"
            payload.write_bytes(value + b"\n")
            said = self.check(
                "kafka-producer-perf-test", access, "--topic", topic, "--num-records", 1,
                "--throughput", -1, "--payload-file", payload, "--transactional-id",
                transactional_id,
            )  # fmt: skip
            assert "1 records sent" in said

    def read(self, access: Access, topic: str, group: str, count: int) -> list[bytes]:
        done = self.tool(
            "kafka-console-consumer", access, "--topic", topic, "--group", group,
            "--from-beginning", "--max-messages", count, "--isolation-level", "read_committed",
            "--timeout-ms", TOOL_WITHIN_MS,
        )  # fmt: skip
        assert f"Processed a total of {count} messages" in done.output + done.errors, done
        return [line.encode() for line in done.lines if not line.startswith("Processed")]

    def refusal(self, access: Access, topic: str, group: str = "") -> str:
        if group:
            done = self.tool(
                "kafka-consumer-perf-test", access, "--topic", topic, "--group", group,
                "--num-records", 1, "--timeout", TOOL_WITHIN_MS,
            )  # fmt: skip
        else:
            # Without TLS it gets no answer from a TLS listener.
            is_answered = access.protocol != "PLAINTEXT"
            done = self.tool(
                "kafka-producer-perf-test", access, "--topic", topic, "--num-records", 1,
                "--throughput", -1, "--record-size", 1, "--command-property",
                f"max.block.ms={TOOL_WITHIN_MS if is_answered else REFUSED_WITHIN_MS}",
            )  # fmt: skip
        said = done.output + done.errors
        assert "1 records sent" not in said
        return said

    def file(self, access: Access) -> Path:
        """The properties of an access."""
        if access not in self._files:
            path = self._home / f"{uuid.uuid4().hex}.properties"
            values = _properties(access)
            path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
            self._files[access] = path
        return self._files[access]


def _properties(access: Access) -> dict[str, object]:
    found: dict[str, object] = {"security.protocol": access.protocol}
    if access.trust is not None:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": access.trust}
    if access.certificate is not None:
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": access.certificate}
    if not access.mechanism:
        return found
    found["sasl.mechanism"] = access.mechanism
    if access.mechanism == "OAUTHBEARER":
        return found | _bearer(access)
    module = PLAIN_MODULE if access.mechanism == "PLAIN" else SCRAM_MODULE
    login = f'{module} required username="{access.name}" password="{access.password}";'
    return {**found, "sasl.jaas.config": jaas(access) if access.is_token else login}


def _bearer(access: Access) -> dict[str, object]:
    """How Java gets its token: made up, from its provider, or from a file."""
    if access.unsecured:
        claim = f'unsecuredLoginStringClaim_sub="{access.unsecured}"'
        return {"sasl.jaas.config": f"{BEARER_MODULE} {claim};"}
    found: dict[str, object] = {
        "sasl.jaas.config": f"{BEARER_MODULE};",
        "sasl.login.callback.handler.class": f"{BEARER}.OAuthBearerLoginCallbackHandler",
    }
    if access.token_url:
        return found | {
            "sasl.oauthbearer.token.endpoint.url": access.token_url,
            "sasl.oauthbearer.client.credentials.client.id": access.name,
            "sasl.oauthbearer.client.credentials.client.secret": access.password,
        }
    assert access.bearer_path is not None
    return found | {
        "sasl.oauthbearer.jwt.retriever.class": f"{BEARER}.FileJwtRetriever",
        "sasl.oauthbearer.token.endpoint.url": access.bearer_path.as_uri(),
    }
