#!/usr/bin/env python3
"""Makes what secures a cluster, and renews it: `moldau-secrets HOME SHARED`.

HOME has the certificate authority and the passwords. SHARED has what nodes and clients read: a key
store for each node and client, and the authority's certificate. MOLDAU_SECRETS says what to make:

    {"nodes": {"broker-1": ["broker-1", "localhost"]}, "clients": ["admin"],
     "passwords": ["admin"], "days": 365, "renew_days": 60, "rotation_pause_hours": 24,
     "profiles": {"admin": "localhost:9092"}, "controllers": "localhost:9093"}

Each node's list names the hosts of its certificate. A profile is the super user's settings for the
addresses behind its name, as SHARED/client/profiles/NAME.properties; that of controllers shows the
super user's certificate. A run that has nothing to do
changes nothing, so that it can be repeated: at every start, at every upgrade, once a week.

Owns which certificates are made again: those that are missing, that are for other hosts, or that
end within `renew_days`. In its last year the authority is replaced, one step a run, and
each `rotation_pause_hours` after the one before. Must not sign (moldau.local.certificate_authority
does), nor know where secrets are kept elsewhere (moldau_kubernetes.py does). Invariant: the key of
the authority never comes into SHARED.
"""

from __future__ import annotations

import datetime
import json
import os
import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from moldau.local.certificate_authority import (
    NEXT_FILE,
    AuthorityRotation,
    CertificateAuthority,
    CertificateError,
    summary_of,
    trusted_in,
)
from moldau.local.secure_files import (
    ADMIN,
    CLIENTS,
    KEY_STORE,
    MECHANISM,
    NODES,
    PASSWORD_BYTES,
    authority_name,
    properties_text,
)
from moldau.runtime.private_files import OWNER_ONLY_DIRECTORY, READABLE, replace_file

VARIABLE: Final = "MOLDAU_SECRETS"
AUTHORITY: Final = "authority"
TRUST: Final = "ca.pem"
PASSWORDS: Final = "passwords"
AUTHORITY_ENDS_SOON_DAYS: Final = 365


@dataclass(frozen=True, slots=True)
class Wanted:
    """What MOLDAU_SECRETS says."""

    nodes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    clients: Sequence[str] = ()
    passwords: Sequence[str] = ()
    days: int = 365
    renew_days: int = 60
    rotation_pause_hours: float = 24.0
    profiles: Mapping[str, str] = field(default_factory=dict)
    controllers: str = ""

    @classmethod
    def of(cls, text: str) -> Wanted:
        """Raises: ValueError: a text that is no such document."""
        try:
            document = json.loads(text)
            return cls(**document)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{VARIABLE}: {error}") from None


class Secrets:
    """The files of one cluster; `make` has everything that is wanted in them."""

    def __init__(self, home: Path, shared: Path, wanted: Wanted) -> None:
        self.home = home
        self.shared = shared
        self._wanted = wanted
        self._said: list[str] = []

    @property
    def authority(self) -> Path:
        return self.home / AUTHORITY

    def store(self, name: str) -> Path:
        """The key store of a node or a client, where `moldau certificates` looks for it."""
        if name in self._wanted.nodes:
            return self.shared / name / KEY_STORE
        return self.shared / f"{name}.pem"

    def password(self, name: str) -> Path:
        return self.home / PASSWORDS / name

    def make(self) -> list[str]:
        """Make what is missing or ends soon; a line for each. Raises: CertificateError, OSError."""
        self._said = []
        if self._wanted.nodes or self._wanted.clients:
            self._certify()
        for name in self._wanted.passwords:
            path = self.password(name)
            if not path.exists():
                path.parent.mkdir(OWNER_ONLY_DIRECTORY, parents=True, exist_ok=True)
                replace_file(path, f"{secrets.token_urlsafe(PASSWORD_BYTES)}\n".encode())
                self._said.append(f"a password for {name}")
        for name, servers in self._wanted.profiles.items():
            self._write_profile(name, self._settings(servers))
        if self._wanted.controllers:
            self._write_profile("controllers", self._settings_for_controllers())
        return self._said

    def _certify(self) -> None:
        if not (self.authority / TRUST).exists():
            made = CertificateAuthority.create(self.authority, authority_name())
            self._said.append(f"an authority: {summary_of(made.certificate_path).subject}")
        self._rotate()
        authority = CertificateAuthority.load(self.authority)
        for name, hosts in self._wanted.nodes.items():
            self._issue(authority, name, NODES, hosts)
        for name in self._wanted.clients:
            self._issue(authority, name, CLIENTS, ())
        trust = (self.authority / TRUST).read_bytes()
        target = self.shared / TRUST
        if not target.exists() or target.read_bytes() != trust:
            replace_file(target, trust, READABLE)

    def _issue(
        self, authority: CertificateAuthority, name: str, unit: str, hosts: Iterable[str]
    ) -> None:
        path = self.store(name)
        path.parent.mkdir(OWNER_ONLY_DIRECTORY, parents=True, exist_ok=True)
        is_wanted = False
        if path.exists():
            found = summary_of(path)
            left = found.expires_at - datetime.datetime.now(datetime.UTC)
            is_wanted = (
                set(found.hosts) == set(hosts)
                and found.subject == f"CN={name},OU={unit}"
                and left.days >= self._wanted.renew_days
            )
        if not is_wanted:
            made = authority.issue(path, name, unit, hosts, self._wanted.days)
            self._said.append(f"a certificate: {made.subject}, until {made.expires_at:%Y-%m-%d}")

    def _rotate(self) -> None:
        """The next step of another authority taking the place of this one, when it is due."""
        now = datetime.datetime.now(datetime.UTC)
        soon = now + datetime.timedelta(days=AUTHORITY_ENDS_SOON_DAYS)
        stores = [self.store(each) for each in (*self._wanted.nodes, *self._wanted.clients)]
        stores = [path for path in stores if path.exists()]
        is_under_way = (self.authority / NEXT_FILE).exists()
        if not is_under_way and trusted_in(self.authority)[0].not_valid_after_utc > soon:
            return
        rotation = AuthorityRotation(self.authority, stores)
        if not rotation.is_trusted:
            rotation.trust_both(authority_name())
            self._said.append("a new authority is trusted beside the old one")
        elif not self._has_waited(self.authority / NEXT_FILE, now):
            return
        elif unsigned := rotation.unsigned():
            authority = CertificateAuthority.load(self.authority)
            for path in unsigned:
                authority.renew(path, self._wanted.days)
            self._said.append("the new authority signs every certificate")
        elif all(self._has_waited(path, now) for path in stores):
            rotation.forget_the_old()
            self._said.append("the old authority is forgotten")

    def _has_waited(self, path: Path, now: datetime.datetime) -> bool:
        """Whether nodes and clients have had the time to take that certificate."""
        [made, *_] = _certificates(path)
        pause = datetime.timedelta(hours=self._wanted.rotation_pause_hours)
        # Certificates begin an hour before they are made.
        return now - made.not_valid_before_utc >= pause + datetime.timedelta(hours=1)

    def _settings(self, servers: str) -> dict[str, str]:
        login = "org.apache.kafka.common.security.scram.ScramLoginModule"
        password = self.password(ADMIN).read_text().strip()
        return {
            "bootstrap.servers": servers,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": f'{login} required username="{ADMIN}" password="{password}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": (self.authority / TRUST).read_text(),
        }

    def _settings_for_controllers(self) -> dict[str, str]:
        return {
            "bootstrap.controllers": self._wanted.controllers,
            "security.protocol": "SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.store(ADMIN).absolute()),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str((self.shared / TRUST).absolute()),
        }

    def _write_profile(self, name: str, settings: Mapping[str, str]) -> None:
        path = self.shared / "client" / "profiles" / f"{name}.properties"
        path.parent.mkdir(OWNER_ONLY_DIRECTORY, parents=True, exist_ok=True)
        content = properties_text(settings).encode()
        if not path.exists() or path.read_bytes() != content:
            replace_file(path, content)
            self._said.append(f"settings of a client: {path}")


def _certificates(path: Path) -> list[Any]:
    from cryptography import x509

    return list(x509.load_pem_x509_certificates(path.read_bytes()))


def main(arguments: Sequence[str]) -> int:
    """Make what MOLDAU_SECRETS wants; returns the exit status."""
    if len(arguments) != 2:
        print("moldau-secrets: usage: moldau-secrets HOME SHARED", file=sys.stderr)
        return 2
    home, shared = map(Path, arguments)
    try:
        wanted = Wanted.of(os.environ.get(VARIABLE, ""))
        made = Secrets(home, shared, wanted)
        for line in made.make():
            print(f"moldau-secrets: made {line}", file=sys.stderr)
        for name in wanted.passwords:
            # What controllers are formatted with.
            target = shared / f"{name}.password"
            if not target.exists():
                replace_file(target, made.password(name).read_bytes())
        link = shared / AUTHORITY
        if not link.is_symlink():  # `moldau certificates` finds the authority there
            link.symlink_to(made.authority.absolute())
    except (ValueError, CertificateError) as error:
        print(f"moldau-secrets: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"moldau-secrets: {error.filename}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
