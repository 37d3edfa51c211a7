#!/usr/bin/env python3
"""What the chart's init containers and jobs do: `moldau-kubernetes VERB`.

    zone               writes the zone of the machine, which Kubernetes knows, to MOLDAU_RACK_FILE
    secrets            makes certificates and passwords, and keeps them as Secrets; renews them
    users              gives users their passwords, and their permissions
    empty MODE ID…     before brokers go: refuses while they have replicas, or moves these away
                       (MODE is refuse or move)
    unregister ID…     when they have gone: removes them from the cluster

Owns the way to the API server, with the pod's own service account. Must not decide which
certificates are made again (moldau_secrets.py does). `users`, `empty` and `unregister` ask the
cluster with the `moldau` command, whose settings come from the pod's profile.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import shlex
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

MOLDAU: Final = (sys.executable, "-m", "moldau.cli.main")

SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
ZONE_VARIABLES: Final = ("NODE_NAME", "MOLDAU_ZONE_LABEL", "MOLDAU_RACK_FILE")
SECRETS_VARIABLE: Final = "MOLDAU_KUBERNETES_SECRETS"
USERS_VARIABLE: Final = "MOLDAU_USERS"
API_TIMEOUT_S: Final = 10.0
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024

KEY_STORE: Final = "tls-combined.pem"
TRUST: Final = "ca.crt"
"""As cert-manager names them, whose Secrets nodes take as well."""

PAUSE_S: Final = 3.0
CLUSTER_LIMIT_S: Final = 600.0
MOST_FAILURES: Final = 20
MOST_NAMED: Final = 5


class ApiError(Exception):
    """The API server refused, or answered what cannot be used."""


def main(arguments: Sequence[str]) -> int:
    """Do what the first word says; returns the exit status."""
    verb, *rest = arguments or ("",)
    counts = {"zone": 0, "secrets": 0, "users": 0}
    if verb not in VERBS or (verb in counts and rest) or (verb not in counts and not rest):
        refuse("usage: moldau-kubernetes zone|secrets|users|empty MODE ID…|unregister ID…", 2)
    try:
        status: int = VERBS[verb](*rest)
    except (ApiError, OSError, http.client.HTTPException) as error:
        say(str(error))
        return 1
    return status


# -- the zone --------------------------------------------------------------------------------------


def zone() -> int:
    """Write what the label MOLDAU_ZONE_LABEL of the machine NODE_NAME says."""
    name, label, target = (os.environ.get(each, "") for each in ZONE_VARIABLES)
    if not (name and label and target):
        refuse(f"{', '.join(ZONE_VARIABLES)} must be set", 2)
    machine = asked("GET", f"/api/v1/nodes/{urllib.parse.quote(name, safe='')}")
    rack = machine["metadata"].get("labels", {}).get(label, "")
    if not rack:
        say(f"machine {name} has no label {label}: without zones leave brokers.rack.from empty")
        return 1
    with open(target, "w", encoding="utf-8") as file:
        file.write(rack + "\n")
    return 0


# -- secrets ---------------------------------------------------------------------------------------


class ClusterSecrets:
    """The Secrets of one cluster: read into files, and written where files have changed.

    Args:
        names: `authority`: the Secret with what signs. `stores`: by the name in a certificate, the
            Secret of its key store. `passwords`: by user, the Secret and its key. `labels`: for
            those that are made.
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._labels = names.get("labels", {})
        self._authority: str | None = names.get("authority")
        self._stores: Mapping[str, str] = names.get("stores", {})
        self._passwords: Mapping[str, Sequence[str]] = names.get("passwords", {})
        account = os.environ.get("MOLDAU_SERVICE_ACCOUNT", SERVICE_ACCOUNT)
        self._namespace = Path(account, "namespace").read_text(encoding="utf-8").strip()
        self._found: dict[str, dict[str, Any] | None] = {}

    def renew(self) -> list[str]:
        """Make what is missing or ends soon; a line for each. Raises: ApiError."""
        from moldau_secrets import VARIABLE, Secrets, Wanted

        from moldau.local.certificate_authority import CertificateError

        with tempfile.TemporaryDirectory() as directory:
            home = Path(directory)
            try:
                wanted = Wanted.of(os.environ.get(VARIABLE, ""))
                files = Secrets(home, home / "shared", wanted)
                self._read(files)
                said = files.make()
                self._write(files)
            except (ValueError, CertificateError) as error:
                raise ApiError(str(error)) from None
        return said

    def _read(self, files: Any) -> None:
        files.shared.mkdir(mode=0o700)
        if self._authority is not None:
            files.authority.mkdir(mode=0o700)
            for name, content in self._data(self._authority).items():
                _write_file(files.authority / name, content)
        for name, secret in self._stores.items():
            data = self._data(secret)
            if KEY_STORE in data:
                _write_file(files.store(name), data[KEY_STORE])
        for user, (secret, key) in self._passwords.items():
            data = self._data(secret)
            if key in data:
                _write_file(files.password(user), data[key])

    def _write(self, files: Any) -> None:
        """What signs comes first: a certificate without its authority would be of no use."""
        if self._authority is not None:
            kept = {each.name: each.read_bytes() for each in sorted(files.authority.iterdir())}
            self._keep(self._authority, kept, whole=True)
        for name, secret in self._stores.items():
            key_store = files.store(name).read_bytes()
            trust = (files.authority / "ca.pem").read_bytes()
            self._keep(secret, {KEY_STORE: key_store, TRUST: trust})
        by_secret: dict[str, dict[str, bytes]] = {}
        for user, (secret, key) in self._passwords.items():
            password = files.password(user).read_bytes().strip()
            by_secret.setdefault(secret, {})[key] = password
        for secret, passwords in by_secret.items():
            self._keep(secret, passwords)

    def _data(self, secret: str) -> dict[str, bytes]:
        if secret not in self._found:
            self._found[secret] = asked("GET", self._path(secret), may_lack=True) or None
        found = self._found[secret]
        data = {} if found is None else found.get("data") or {}
        return {key: base64.b64decode(text) for key, text in data.items()}

    def _keep(self, secret: str, data: Mapping[str, bytes], *, whole: bool = False) -> None:
        """Have these keys in a Secret; `whole`: and no others."""
        before = self._data(secret)
        after = dict(data) if whole else {**before, **data}
        found = self._found[secret]
        if found is not None and after == before:
            return
        encoded = {key: base64.b64encode(content).decode() for key, content in after.items()}
        if found is None:
            metadata = {"name": secret, "labels": self._labels}
            made = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": encoded}
            self._found[secret] = asked("POST", self._path(), {**made, "type": "Opaque"})
        else:  # with its resourceVersion: a change that came between is a conflict
            self._found[secret] = asked("PUT", self._path(secret), {**found, "data": encoded})

    def _path(self, secret: str | None = None) -> str:
        path = f"/api/v1/namespaces/{self._namespace}/secrets"
        return path if secret is None else f"{path}/{urllib.parse.quote(secret, safe='')}"


def secrets() -> int:
    """Make what is missing or ends soon."""
    for line in ClusterSecrets(document_of(SECRETS_VARIABLE)).renew():
        say(f"made {line}")
    return 0


def _write_file(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)


# -- users -----------------------------------------------------------------------------------------


def users() -> int:
    """Give each user of MOLDAU_USERS its password and permissions, when the cluster answers."""
    wanted = document_of(USERS_VARIABLE)
    if not answers():
        say(f"the cluster does not answer within {CLUSTER_LIMIT_S:g} s")
        return 1
    for user in wanted:
        name = user["name"]
        done = moldau("users", "create", name, "--password-file", user["passwordFile"])
        for words in user.get("acls", ()):
            if done.returncode == 0:
                done = moldau("acls", "create", "--allow", name, *shlex.split(words))
        if done.returncode != 0:
            return done.returncode
    return 0


def answers() -> bool:
    """Whether the cluster answers in time."""
    deadline = time.monotonic() + CLUSTER_LIMIT_S
    while moldau("brokers", "list", "--json", captured=True).returncode != 0:
        if time.monotonic() >= deadline:
            return False
        time.sleep(PAUSE_S)
    return True


# -- fewer brokers ---------------------------------------------------------------------------------


def empty(mode: str, *broker_ids: str) -> int:
    """Let brokers go only when they have no replicas; `move` has these moved away first."""
    going = _ids(broker_ids)
    if mode not in ("refuse", "move") or not going:
        refuse("usage: moldau-kubernetes empty refuse|move ID…", 2)
    listed = ",".join(map(str, sorted(going)))
    failures = 0
    while True:
        left = replicas_on(going)
        if left is None:
            failures += 1
        elif not left:
            say(f"no replica is on {listed}")
            return 0
        elif mode == "refuse":
            names = ", ".join(left[:MOST_NAMED]) + (", …" if len(left) > MOST_NAMED else "")
            say(
                f"{len(left)} replicas are on brokers that are to go ({listed}): {names}. Move "
                f"them first: moldau topics reassign execute --without {listed} --wait; or set "
                "brokers.scaleDown=move"
            )
            return 1
        else:
            say(f"{len(left)} replicas to move from {listed}")
            done = moldau("topics", "reassign", "execute", "--without", listed)
            failures = failures + 1 if done.returncode != 0 else 0
        if failures >= MOST_FAILURES:
            say("given up: the cluster does not answer, or refuses to move them")
            return 1
        time.sleep(PAUSE_S)


def replicas_on(broker_ids: set[int]) -> list[str] | None:
    """The partitions with a replica there, internal topics' too; None without an answer."""
    asked_for = moldau("topics", "describe", "--json", captured=True)
    if asked_for.returncode != 0:
        return None
    return [
        f"{topic['name']}-{row['partition']}"
        for topic in json.loads(asked_for.stdout)
        for row in topic["partitions"]
        if not broker_ids.isdisjoint(row["replicas"])
    ]


def unregister(*broker_ids: str) -> int:
    """Remove brokers that have stopped from the cluster."""
    going = _ids(broker_ids)
    deadline = time.monotonic() + CLUSTER_LIMIT_S
    while going:
        listed = moldau("brokers", "list", "--json", captured=True)
        if listed.returncode == 0:
            states = {
                each["broker_id"]: each["state"] for each in json.loads(listed.stdout)["brokers"]
            }
            going &= states.keys()
            for broker_id in sorted(going):
                if states[broker_id] == "fenced":
                    moldau("brokers", "unregister", str(broker_id), "--yes")
        if going and time.monotonic() >= deadline:
            say(f"broker {min(going)} has not stopped within {CLUSTER_LIMIT_S:g} s")
            return 1
        if going:
            time.sleep(PAUSE_S)
    return 0


def _ids(texts: Sequence[str]) -> set[int]:
    for text in texts:
        if not (text.isascii() and text.isdigit()):
            refuse(f"{text!r} is not the id of a broker", 2)
    return {int(text) for text in texts}


# -- what they share -------------------------------------------------------------------------------


def asked(
    method: str, path: str, document: object = None, *, may_lack: bool = False
) -> dict[str, Any]:
    """What the API server answers; empty for nothing, where it may lack it. Raises: ApiError."""
    account = os.environ.get("MOLDAU_SERVICE_ACCOUNT", SERVICE_ACCOUNT)
    with open(os.path.join(account, "token"), encoding="utf-8") as file:
        token = file.read().strip()
    trusted = ssl.create_default_context(cafile=os.path.join(account, "ca.crt"))
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
    port = int(os.environ.get("KUBERNETES_SERVICE_PORT", "443"))
    connection = http.client.HTTPSConnection(host, port, timeout=API_TIMEOUT_S, context=trusted)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    body = None if document is None else json.dumps(document)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        text = answer.read(MAX_ANSWER_BYTES).decode(errors="replace")
    finally:
        connection.close()
    if may_lack and answer.status == http.client.NOT_FOUND:
        return {}
    if answer.status not in (http.client.OK, http.client.CREATED):
        raise ApiError(f"{path} answered {answer.status}: {' '.join(text.split())[:200]}")
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise ApiError(f"{path}: {error}") from None
    return found


def document_of(variable: str) -> Any:
    """The JSON of a variable; ends with status 2 where there is none."""
    try:
        return json.loads(os.environ.get(variable, ""))
    except ValueError as error:
        refuse(f"{variable}: {error}", 2)


def moldau(*arguments: str, captured: bool = False) -> subprocess.CompletedProcess[Any]:
    """Run the `moldau` command to its end. Its errors go where ours go."""
    return subprocess.run(
        [*MOLDAU, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if captured else None,
        check=False,
    )


def say(text: str) -> None:
    """One line for the log."""
    print(f"moldau-kubernetes: {text}", file=sys.stderr, flush=True)


def refuse(text: str, status: int) -> NoReturn:
    """One line, and the end."""
    say(text)
    sys.exit(status)


VERBS: Final[Mapping[str, Any]] = {
    "zone": zone,
    "secrets": secrets,
    "users": users,
    "empty": empty,
    "unregister": unregister,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
