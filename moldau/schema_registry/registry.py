"""The client of a schema registry: Confluent's HTTP API, which others serve too.

Owns the requests, what they fail with, and the schemas that are known already. Must not know a
format. Invariants: a schema's id means the same schema for ever, so that it is asked for once; what
is kept in memory has a limit; credentials go to the registry's own addresses alone, and into no
error.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import IO, Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from moldau.client.errors import ConfigurationError, KafkaError
from moldau.runtime.fault_words import words_of
from moldau.runtime.https import opener
from moldau.schema_registry.kept import Kept
from moldau.schema_registry.settings import REGISTRY_KEYS

CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024
MAX_KEPT: Final = 1_000
"""Schemas and ids that are kept each; the one that was used longest ago goes first."""
MAX_REFERENCE_DEPTH: Final = 100
DEFAULT_TIMEOUT_MS: Final = 10_000
LATEST: Final = "latest"
NOT_ALLOWED: Final = (401, 403)
SHOWN_CHARACTERS: Final = 500
SOURCES: Final = ("URL", "USER_INFO")
"""Where Confluent's clients have the user and the password from."""


class SchemaRegistryError(KafkaError):
    """The registry refused a request, or could not be asked.

    Attributes:
        status: of HTTP; 0 when no registry answered.
        error_code: the registry's own, such as 40401 for a subject that is not there; else 0.
    """

    def __init__(self, message: str, *, status: int = 0, error_code: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.error_code = error_code


class SchemaReference(NamedTuple):
    """A schema that another one uses: under which name, and where the registry has it."""

    name: str
    subject: str
    version: int


class Schema(NamedTuple):
    """A schema's text, its kind (AVRO, PROTOBUF or JSON) and what it uses."""

    text: str
    kind: str = "AVRO"
    references: tuple[SchemaReference, ...] = ()


class RegisteredSchema(NamedTuple):
    """A schema as a subject has it."""

    schema_id: int
    subject: str
    version: int
    schema: Schema


class SchemaRegistry:
    """A client of one registry; its methods block. Usable from several threads.

    Args:
        url: `http://host:port`, with a path if there is one; several are asked in turn when one
            does not answer.
        user_info: `user:password` for basic authentication.
        ca_location: a file of certificates to trust instead of the system's.
        timeout_ms: of one request to one address.

    Raises:
        ConfigurationError: a URL or a certificate file that cannot be used.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        user_info: str | None = None,
        ca_location: str | None = None,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> None:
        urls = url.split(",") if isinstance(url, str) else url
        self._headers = {"Accept": CONTENT_TYPE, "Content-Type": CONTENT_TYPE}
        self._urls = [self._checked(each.strip()) for each in urls]
        if user_info is not None:
            self._set_credentials(user_info)
        try:
            context = ssl.create_default_context(cafile=ca_location)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"schema registry: {ca_location}: {error}") from None
        self._opener = opener(context)
        self._timeout_s = timeout_ms / 1_000
        self._kept = Kept(MAX_KEPT)

    @classmethod
    def from_properties(cls, properties: Mapping[str, object]) -> SchemaRegistry:
        """From the keys of Confluent's clients, `REGISTRY_KEYS`; others are left alone.

        Raises:
            ConfigurationError: there is no `schema.registry.url`, or a value cannot be used.
        """
        given = {key: str(properties[key]) for key in REGISTRY_KEYS if key in properties}
        if "schema.registry.url" not in given:
            raise ConfigurationError("schema.registry.url is needed, such as http://localhost:8081")
        timeout = given.get("schema.registry.request.timeout.ms", str(DEFAULT_TIMEOUT_MS))
        if not (timeout.isascii() and timeout.isdigit() and int(timeout) > 0):
            raise ConfigurationError(
                f"schema.registry.request.timeout.ms={timeout}: must be a number from 1 on"
            )
        basic = "basic.auth.credentials.source"
        source = given.get(f"schema.registry.{basic}") or given.get(basic)
        if source not in (None, *SOURCES):
            raise ConfigurationError(f"{basic}={source}: must be one of {', '.join(SOURCES)}")
        user_info = given.get("schema.registry.basic.auth.user.info")
        user_info = user_info or given.get("basic.auth.user.info")
        return cls(
            given["schema.registry.url"],
            user_info=None if source == "URL" else user_info,
            ca_location=given.get("schema.registry.ssl.ca.location"),
            timeout_ms=int(timeout),
        )

    def __repr__(self) -> str:
        return f"SchemaRegistry({','.join(self._urls)!r})"

    # -- questions -------------------------------------------------------------------------------

    def schema(self, schema_id: int) -> Schema:
        """The schema with that id. Raises: SchemaRegistryError"""

        def ask() -> Schema:
            answer = self._ask("GET", f"/schemas/ids/{schema_id}", what=f"schema {schema_id}")
            return _schema(answer)

        return self._kept.get(("id", schema_id), ask)

    def latest(self, subject: str) -> RegisteredSchema:
        """The subject's newest schema, asked for each time. Raises: SchemaRegistryError"""
        return self._version(subject, LATEST)

    def version(self, subject: str, version: int) -> RegisteredSchema:
        """The subject's schema of that version. Raises: SchemaRegistryError"""
        key = ("version", subject, version)
        return self._kept.get(key, lambda: self._version(subject, str(version)))

    def register(self, subject: str, schema: Schema) -> int:
        """Make a schema the subject's newest, unless the subject has it already; its id.

        Raises:
            SchemaRegistryError: it is invalid, or not compatible with those before (status 409).
        """
        what = f"register a schema under {subject}"

        def ask() -> int:
            answer = self._post(f"/subjects/{quote(subject, safe='')}/versions", what, schema)
            try:
                return int(answer["id"])
            except (KeyError, TypeError, ValueError):
                raise _not_understood(what, answer) from None

        return self._kept.get(("register", subject, schema), ask)

    def lookup(self, subject: str, schema: Schema) -> RegisteredSchema:
        """A schema as the subject has it. Raises: SchemaRegistryError: it has not"""
        what = f"find the schema under {subject}"

        def ask() -> RegisteredSchema:
            answer = self._post(f"/subjects/{quote(subject, safe='')}", what, schema)
            return _registered(answer, what)

        return self._kept.get(("lookup", subject, schema), ask)

    def subjects(self) -> list[str]:
        """All subjects. Raises: SchemaRegistryError"""
        answer = self._ask("GET", "/subjects", what="subjects")
        if not isinstance(answer, list):
            raise _not_understood("subjects", answer)
        return sorted(map(str, answer))

    def referenced(self, schema: Schema) -> dict[str, Schema]:
        """All schemas that a schema uses, directly or not, by name, used ones first.

        Raises:
            SchemaRegistryError: one is not there, or they are nested too deeply.
        """
        found: dict[str, Schema] = {}
        self._collect(schema, found, 0)
        return found

    def _collect(self, schema: Schema, found: dict[str, Schema], depth: int) -> None:
        if depth > MAX_REFERENCE_DEPTH:
            raise SchemaRegistryError("the schema's references go round in a circle")
        for reference in schema.references:
            if reference.name not in found:
                used = self.version(reference.subject, reference.version).schema
                self._collect(used, found, depth + 1)
                found[reference.name] = used

    def _version(self, subject: str, version: str) -> RegisteredSchema:
        what = f"version {version} of {subject}"
        answer = self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions/{version}", what)
        return _registered(answer, what)

    def _post(self, path: str, what: str, schema: Schema) -> Any:
        body: dict[str, object] = {"schema": schema.text}
        if schema.kind != "AVRO":
            body["schemaType"] = schema.kind
        if schema.references:
            body["references"] = [each._asdict() for each in schema.references]
        return self._ask("POST", path, what, body)

    # -- HTTP --------------------------------------------------------------------------------------

    def _checked(self, url: str) -> str:
        try:
            parts = urlsplit(url)
            is_good = parts.scheme in ("http", "https") and bool(parts.hostname)
            _ = parts.port
        except ValueError:
            is_good = False
        if not is_good:
            raise ConfigurationError(
                f"schema.registry.url: {_without_password(url)!r} is not http://HOST:PORT"
            )
        if parts.username is not None:
            self._set_credentials(f"{unquote(parts.username)}:{unquote(parts.password or '')}")
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))

    def _set_credentials(self, user_info: str) -> None:
        if ":" not in user_info:
            raise ConfigurationError("basic.auth.user.info must be user:password")
        encoded = base64.b64encode(user_info.encode()).decode()
        self._headers["Authorization"] = f"Basic {encoded}"

    def _ask(self, method: str, path: str, what: str, body: object = None) -> Any:
        """The answer's JSON, of the first address that gives one. Raises: SchemaRegistryError"""
        data = None if body is None else json.dumps(body).encode()
        failures = []
        for url in self._urls:
            request = urllib.request.Request(
                url + path, data=data, headers=self._headers, method=method
            )
            try:
                with self._opener.open(request, timeout=self._timeout_s) as response:
                    return _parsed(response, what)
            except urllib.error.HTTPError as error:
                with error:
                    problem = _refusal(error, what)
                if error.code < http.client.INTERNAL_SERVER_ERROR:
                    raise problem from None
                failures.append(f"{url}: {problem}")
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", None) or error
                told = words_of(reason) if isinstance(reason, Exception) else reason
                failures.append(f"{url}: {told}")
        raise SchemaRegistryError(f"schema registry: {what}: {'; '.join(failures)}")


def _parsed(response: IO[bytes], what: str) -> Any:
    data = response.read(MAX_RESPONSE_BYTES + 1)
    if len(data) > MAX_RESPONSE_BYTES:
        raise SchemaRegistryError(
            f"schema registry: {what}: the answer has over {MAX_RESPONSE_BYTES} bytes"
        )
    try:
        return json.loads(data)
    except ValueError:
        raise _not_understood(what, data[:SHOWN_CHARACTERS].decode(errors="replace")) from None


def _refusal(error: urllib.error.HTTPError, what: str) -> SchemaRegistryError:
    code, words = 0, error.reason
    try:
        answer = json.loads(error.read(MAX_RESPONSE_BYTES))
        code, words = int(answer["error_code"]), str(answer["message"])[:SHOWN_CHARACTERS]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        pass
    if error.code in NOT_ALLOWED:
        words += " (basic.auth.user.info has the user and the password)"
    if http.client.MULTIPLE_CHOICES <= error.code < http.client.BAD_REQUEST:
        words = f"it redirects to {error.headers.get('Location')}: give that address"
    return SchemaRegistryError(
        f"schema registry: {what}: {error.code} {words}", status=error.code, error_code=code
    )


def _schema(answer: Any) -> Schema:
    try:
        return Schema(
            str(answer["schema"]),
            str(answer.get("schemaType") or "AVRO").upper(),
            tuple(
                SchemaReference(str(each["name"]), str(each["subject"]), int(each["version"]))
                for each in answer.get("references") or ()
            ),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _not_understood("a schema", answer) from None


def _registered(answer: Any, what: str) -> RegisteredSchema:
    try:
        found = int(answer["id"]), str(answer["subject"]), int(answer["version"])
    except (KeyError, TypeError, ValueError):
        raise _not_understood(what, answer) from None
    return RegisteredSchema(*found, _schema(answer))


def _not_understood(what: str, answer: object) -> SchemaRegistryError:
    shown = str(answer)[:SHOWN_CHARACTERS]
    return SchemaRegistryError(
        f"schema registry: {what}: the answer is not a schema registry's: {shown!r}"
    )


def _without_password(url: str) -> str:
    begin, at, end = url.rpartition("@")
    return f"{begin.partition('//')[0]}//…@{end}" if at else url
