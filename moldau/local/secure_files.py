"""What secures a cluster that is laid out here: its authority, certificates, super user, clients.

Owns the files of one cluster's directory that hold secrets, and the configuration that uses them:
TLS on every listener, certificates between nodes, SCRAM users and ACLs for clients. Must not sign
certificates (`certificate_authority` does) or start anything. Invariants: a file with a secret is
readable by its owner alone; what exists is kept, so that a cluster that starts again has the
certificates, and the password, it had before.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from moldau.config import ConfigError, read_properties_file
from moldau.runtime.private_files import OWNER_ONLY_DIRECTORY, replace_file

CLIENT_LISTENER: Final = "CLIENT"
INTERNAL_LISTENER: Final = "INTERNAL"
NODES: Final = "nodes"
"""The organisational unit of nodes' certificates: each node is a separate user by its name."""
CLIENTS: Final = "clients"
ADMIN: Final = "admin"
MECHANISM: Final = "SCRAM-SHA-512"
KEY_STORE: Final = "certificate.pem"
PASSWORD_BYTES: Final = 24
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_LOGIN: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_ESCAPED: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"})
_PASSWORD_KEY: Final = "sasl.jaas.config"
_USERS_OF_CERTIFICATES: Final = f"RULE:^CN=([^,]+),OU={CLIENTS}$/$1/,DEFAULT"
#: What stands above the settings in `kcat.conf`.
_KCAT_COMMENT: Final = """\
# The super user's settings for librdkafka from 2.6.1 on: kcat -F, confluent-kafka.
# Older ones cannot log in with SCRAM, neither here nor to Apache Kafka 4 (`kcat -V` says which:
# Debian 12's kcat has 2.0.2, and reports an authentication failure). `moldau consume` can.
"""


class LayoutError(ValueError):
    """A cluster that cannot be laid out as asked; one line that says why."""


class NotSecured(LayoutError):
    """One that cannot be secured."""


@dataclass(frozen=True, slots=True)
class SecureFiles:
    """The files in a cluster's directory."""

    directory: Path

    @property
    def authority(self) -> Path:
        """The directory of the certificate authority, whose key never leaves it."""
        return self.directory / "authority"

    @property
    def trust(self) -> Path:
        """The authority's certificate; those of two while one takes the other's place."""
        return self.authority / "ca.pem"

    @property
    def admin_properties(self) -> Path:
        """The super user's settings, for Moldau's commands, its clients and Kafka's Java ones."""
        return self.directory / "admin.properties"

    @property
    def controllers_properties(self) -> Path:
        """Those for `--bootstrap-controller`, where certificates are shown."""
        return self.directory / "admin-controllers.properties"

    @property
    def kcat_conf(self) -> Path:
        """The super user's settings for librdkafka: `kcat -F`."""
        return self.directory / "kcat.conf"

    @property
    def admin_certificate(self) -> Path:
        return self.directory / "admin.pem"

    def client_properties(self) -> dict[str, str]:
        """The super user's settings. Raises: NotSecured: the file is gone or damaged."""
        return _settings_in(self.admin_properties)

    def librdkafka_properties(self) -> dict[str, str]:
        """The super user's settings for librdkafka. Raises: NotSecured."""
        return _settings_in(self.kcat_conf)

    def controllers_settings(self) -> dict[str, str]:
        """The super user's settings for controllers. Raises: NotSecured."""
        return _settings_in(self.controllers_properties)

    def initial_users(self) -> list[str]:
        """The super user, as `--add-scram` takes users."""
        login = self.client_properties().get(_PASSWORD_KEY, "")
        password = login.partition('password="')[2].partition('"')[0]
        if not password:
            raise NotSecured(f"{self.admin_properties}: no password in {_PASSWORD_KEY}")
        return [f"{MECHANISM}=[name={ADMIN},password={password}]"]

    def make(self, host: str, homes: Mapping[str, Path], bootstrap: str, controllers: str) -> None:
        """Make what is missing.

        Args:
            host: where nodes listen, and what their certificates are valid for.
            homes: each node's directory by its name.
            bootstrap, controllers: addresses of brokers and of controllers.

        Raises:
            NotSecured: a package is missing, or `host` cannot be in a certificate.
            OSError: a file cannot be written.
        """
        if "," in str(self.directory.absolute()) or '"' in str(self.directory.absolute()):
            raise NotSecured(f"{self.directory}: a comma or a quotation mark in the path")
        try:
            from moldau.local.certificate_authority import CertificateAuthority, CertificateError
        except ImportError:
            raise NotSecured(
                "a secured cluster needs the cryptography package: pip install 'moldau[tls]'"
            ) from None
        try:
            if self.trust.exists():
                authority = CertificateAuthority.load(self.authority)
            else:
                self.directory.mkdir(parents=True, exist_ok=True)
                authority = CertificateAuthority.create(self.authority, authority_name())
            for name, home in homes.items():
                if not (home / KEY_STORE).exists():
                    home.mkdir(OWNER_ONLY_DIRECTORY, parents=True, exist_ok=True)
                    authority.issue(home / KEY_STORE, name.replace(" ", "-"), NODES, hosts_of(host))
            if not self.admin_certificate.exists():
                authority.issue(self.admin_certificate, ADMIN, CLIENTS, ())
        except CertificateError as error:
            raise NotSecured(str(error)) from None
        self._make_client_files(bootstrap, controllers)

    def _make_client_files(self, bootstrap: str, controllers: str) -> None:
        trust = {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.trust.absolute()),
        }
        if not self.admin_properties.exists():
            password = secrets.token_urlsafe(PASSWORD_BYTES)
            login = f'{_LOGIN} required username="{ADMIN}" password="{password}";'
            java = {
                "bootstrap.servers": bootstrap,
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": MECHANISM,
                _PASSWORD_KEY: login,
                **trust,
            }
            librdkafka = {
                "bootstrap.servers": bootstrap,
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": MECHANISM,
                "sasl.username": ADMIN,
                "sasl.password": password,
                "ssl.ca.location": str(self.trust.absolute()),
            }
            text = _KCAT_COMMENT + properties_text(librdkafka)
            replace_file(self.kcat_conf, text.encode())
            replace_file(self.admin_properties, properties_text(java).encode())
        if not self.controllers_properties.exists():
            certificate = {
                "bootstrap.controllers": controllers,
                "security.protocol": "SSL",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.admin_certificate.absolute()),
                **trust,
            }
            replace_file(self.controllers_properties, properties_text(certificate).encode())


def http_properties(home: Path, files: SecureFiles) -> dict[str, str]:
    """The configuration of the HTTP listener of the node in `home`, beside its address: clients
    show a certificate, or send the name and the password of a user of SCRAM.
    """
    return {
        "moldau.http.authentication": "BASIC",
        "moldau.http.ssl.keystore.type": "PEM",
        "moldau.http.ssl.keystore.location": str((home / KEY_STORE).absolute()),
        "moldau.http.ssl.truststore.type": "PEM",
        "moldau.http.ssl.truststore.location": str(files.trust.absolute()),
        "moldau.http.ssl.client.auth": "requested",
        "moldau.http.ssl.principal.mapping.rules": _USERS_OF_CERTIFICATES,
    }


def secure_properties(home: Path, files: SecureFiles) -> dict[str, str]:
    """The configuration of the node in `home`, beside its listeners."""
    return {
        "listener.security.protocol.map": (
            f"{CLIENT_LISTENER}:SASL_SSL,{INTERNAL_LISTENER}:SSL,CONTROLLER:SSL"
        ),
        "inter.broker.listener.name": INTERNAL_LISTENER,
        "listener.name.client.sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str((home / KEY_STORE).absolute()),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(files.trust.absolute()),
        "listener.name.internal.ssl.client.auth": "required",
        "listener.name.controller.ssl.client.auth": "required",
        # A client's certificate names its user; a node's whole subject is its name, which no client
        # can have: it is User:CN=broker-1,OU=nodes.
        "ssl.principal.mapping.rules": _USERS_OF_CERTIFICATES,
        "moldau.node.principals": f"User:CN=*,OU={NODES}",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMIN}",
    }


def authority_name() -> str:
    """The common name of a new authority: no two have the same."""
    return f"Moldau {secrets.token_hex(4)}"


def hosts_of(host: str) -> tuple[str, ...]:
    """What a certificate of a node that listens on `host` is valid for."""
    name = host.strip("[]")
    if name in ("", "0.0.0.0", "::"):
        import socket

        return (socket.gethostname(), *LOOPBACK)
    return LOOPBACK if name in LOOPBACK else (name,)


def _settings_in(path: Path) -> dict[str, str]:
    try:
        return dict(read_properties_file(str(path)))
    except ConfigError as error:
        raise NotSecured(str(error)) from None


def properties_text(settings: Mapping[str, str]) -> str:
    """What a `.properties` file with these settings has in it."""
    lines = []
    for key, value in settings.items():
        name = re.sub(r"[\s:=#!\\]", lambda found: f"\\{found.group()}", key)
        escaped = value.translate(_ESCAPED)
        space = "\\" if value.startswith(" ") else ""
        lines.append(f"{name}={space}{escaped}\n")
    return "".join(lines)
