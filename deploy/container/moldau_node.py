#!/usr/bin/env python3
"""What a container does around a node: `moldau-node format|run|health|wait-in-sync CONFIG`.

    format         formats the storage that is not formatted yet
    run            the same, then becomes the node
    health         asks the node's own HTTP listener: /readyz, or another path given behind CONFIG
    wait-in-sync   before a broker stops: waits until no replica on a live broker lags behind, for
                   at most the number of seconds given behind CONFIG (240)

Owns the decision how storage is formatted. Configuration is CONFIG with `KAFKA_…` variables over
it, as for the node itself. MOLDAU_CLUSTER_ID is the cluster's id; MOLDAU_INITIAL_CONTROLLERS
(ID@HOST:PORT:DIRECTORYID,…), for controllers, its first voters, empty once the cluster runs;
MOLDAU_ADMIN_PASSWORD_FILE, for the same controllers, has the password of the first user, `admin`.
MOLDAU_PROFILE and MOLDAU_CONTROLLERS_PROFILE name the profiles (`moldau profile`) with which it
asks brokers and controllers that are secured.
`run` sets broker.rack by MOLDAU_RACK_FILE or MOLDAU_RACK, where there is one, and refuses to go on
when that is empty: replicas would be spread over zones that are none.

Invariant: a controller whose disk is new does not take the place of the voter it was, if the others
say that there was one: it joins as an observer, with another directory id, whatever
MOLDAU_INITIAL_CONTROLLERS says. docs/operations.md has what to do then.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import ssl
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from moldau.config import ConfigError, NodeConfig

MOLDAU: Final = (sys.executable, "-m", "moldau.cli.main")
NODE: Final = (sys.executable, "-m", "moldau.broker")
"""What `moldau server start` becomes."""

META_PROPERTIES: Final = "meta.properties"
ANY_ADDRESS: Final = ("", "0.0.0.0", "::")
LOOPBACK: Final = "127.0.0.1"

QUORUM_TIMEOUT_MS: Final = 3_000
FOUNDING_RECORDS: Final = 100
"""Three controllers and three brokers that have just found each other have some dozens."""

HEALTH_TIMEOUT_S: Final = 5.0
IN_SYNC_LIMIT_S: Final = 240.0
IN_SYNC_PAUSE_S: Final = 2.0

ADMIN_PASSWORD_FILE: Final = "MOLDAU_ADMIN_PASSWORD_FILE"
ADMIN: Final = "admin"
MECHANISM: Final = "SCRAM-SHA-512"
SALT_BYTES: Final = 32
ITERATIONS: Final = 4_096

PROFILE: Final = "MOLDAU_PROFILE"
"""The `moldau` command reads it itself."""
CONTROLLERS_PROFILE: Final = "MOLDAU_CONTROLLERS_PROFILE"


def main(arguments: Sequence[str]) -> int:
    """Do what the first word says; returns the exit status."""
    if not 2 <= len(arguments) <= 3 or arguments[0] not in VERBS:
        refuse(f"usage: moldau-node {'|'.join(VERBS)} CONFIG", status=2)
    verb, path, *rest = arguments
    try:
        config = NodeConfig.load(path, {}, os.environ)
    except ConfigError as error:
        refuse(str(error), status=2)
    status: int = VERBS[verb](path, config, *rest)
    return status


def format_storage(path: str, config: NodeConfig) -> int:
    """Format what is not formatted; nothing is asked or said when everything is."""
    directories = {*config.log_directories, config.metadata_log_directory}
    if all(is_formatted(directory) for directory in directories):
        return 0
    cluster_id = os.environ.get("MOLDAU_CLUSTER_ID", "")
    if not cluster_id:
        refuse("MOLDAU_CLUSTER_ID is not set; `moldau storage random-uuid` makes one", status=2)
    command = ["storage", "format", "--config", path, "--cluster-id", cluster_id]
    return moldau(*command, "--ignore-formatted", *who_votes(config)).returncode


def first_user() -> list[str]:
    """The option that has the cluster know its administrator from the beginning.

    What goes into the command line is made of the password and of a salt, and is not the password.
    """
    path = os.environ.get(ADMIN_PASSWORD_FILE)
    if not path:
        return []
    from moldau.protocol.scram import salted_password

    try:
        with open(path, encoding="utf-8") as file:
            password = file.readline().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        refuse(f"{ADMIN_PASSWORD_FILE}: {error}", status=2)
    if not password:
        refuse(f"{ADMIN_PASSWORD_FILE}: {path} has no password", status=2)
    salt = secrets.token_bytes(SALT_BYTES)
    salted = salted_password(MECHANISM, password, salt, ITERATIONS)
    given = f"name={ADMIN},iterations={ITERATIONS},salt={b64encode(salt).decode()}"
    return ["--add-scram", f"{MECHANISM}=[{given},saltedpassword={b64encode(salted).decode()}]"]


def who_votes(config: NodeConfig) -> list[str]:
    """The options that say who votes at first."""
    if not config.is_controller or config.has_static_voters:
        return []
    voters = os.environ.get("MOLDAU_INITIAL_CONTROLLERS", "")
    if not voters:
        say("MOLDAU_INITIAL_CONTROLLERS is empty: this controller waits to be added to a quorum")
    elif not is_formatted(config.metadata_log_directory):
        objection = objection_to_founding(config)
        if objection is None:
            return ["--initial-controllers", voters, *first_user()]
        say(
            f"{objection}, and this disk is new: controller {config.node_id} joins as an observer. "
            "To make it a voter: `moldau quorum remove-controller` for the one it was, if there "
            "is one, then `moldau quorum add-controller`"
        )
    return ["--no-initial-controllers"]


def objection_to_founding(config: NodeConfig) -> str | None:
    """What the quorum that can be reached says against this node being one of its founders."""
    addresses = ",".join(f"{host}:{port}" for host, port in config.controller_addresses)
    profile = os.environ.get(CONTROLLERS_PROFILE)
    asked = moldau(
        *("quorum", "replication", "--json", "--bootstrap-controller", addresses),
        *("--timeout-ms", str(QUORUM_TIMEOUT_MS)),
        *(() if profile is None else ("--profile", profile)),
        captured=True,
    )
    if asked.returncode != 0:
        say(f"no controller answers, so this one is a founder ({complaint(asked)})")
        return None
    replicas = json.loads(asked.stdout)
    voters = [each for each in replicas if each["status"] != "Observer"]
    own = [each for each in voters if each["node_id"] == config.node_id]
    if not own:
        return "the quorum has other voters"
    if any(each["log_end_offset"] > 0 for each in own):
        return "the quorum has heard of this voter before"
    most = max(each["log_end_offset"] for each in voters)
    return f"the quorum has {most} records" if most > FOUNDING_RECORDS else None


def is_formatted(directory: str) -> bool:
    """Whether a log directory has an identity."""
    return os.path.exists(os.path.join(directory, META_PROPERTIES))


def run(path: str, config: NodeConfig) -> int:
    """Format, then become the node: same process, same signals."""
    take_rack()
    status = format_storage(path, config)
    if status == 0:
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(NODE[0], [*NODE, path])
    return status


def take_rack() -> None:
    """Make the rack that the chart has found the value of broker.rack."""
    path, rack = os.environ.get("MOLDAU_RACK_FILE"), os.environ.get("MOLDAU_RACK")
    if path is not None:
        try:
            with open(path, encoding="utf-8") as file:
                rack = file.read().strip()
        except OSError as error:
            refuse(f"MOLDAU_RACK_FILE: {error}", status=1)
    if rack == "":
        refuse("broker.rack is to be the zone, and this pod has none", status=1)
    if rack is not None:
        os.environ["KAFKA_BROKER_RACK"] = rack


def health(_path: str, config: NodeConfig, page: str = "/readyz") -> int:
    """0 when the node's HTTP listener answers 200."""
    address: str = config["moldau.http.listener"]
    if not address:
        refuse("moldau.http.listener is not set: there is no page to ask for", status=2)
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    where = LOOPBACK if host in ANY_ADDRESS else host
    connection = http.client.HTTPConnection(where, int(port), timeout=HEALTH_TIMEOUT_S)
    if config["moldau.http.ssl.keystore.location"] or config["moldau.http.ssl.keystore.key"]:
        # The node asks itself, and its certificate has its name for others.
        connection = http.client.HTTPSConnection(
            where, int(port), timeout=HEALTH_TIMEOUT_S, context=ssl._create_unverified_context()
        )
    try:
        connection.request("GET", page)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        say(f"{address}{page}: {error}")
        return 1
    finally:
        connection.close()
    print(text)
    return 0 if answer.status == http.client.OK else 1


def wait_in_sync(_path: str, config: NodeConfig, limit: str = str(IN_SYNC_LIMIT_S)) -> int:
    """Wait until no replica is catching up, so that no second replica goes before the first is
    back.

    Replicas on brokers that are down are not waited for. The stop goes on after the limit.
    """
    try:
        deadline = time.monotonic() + float(limit)
    except ValueError:
        refuse(f"{limit!r} is not a number of seconds", status=2)
    if not config.broker_listeners:
        return 0
    while True:
        waiting = catching_up(config)
        if not waiting:
            return 0
        if time.monotonic() >= deadline:
            say(f"not in sync within {limit} s: {', '.join(waiting)}")
            return 0
        time.sleep(IN_SYNC_PAUSE_S)


def catching_up(config: NodeConfig) -> list[str]:
    """The replicas that are not in sync although their brokers are up; empty without an answer."""
    asked = moldau(
        *("topics", "describe", "--under-replicated-partitions", "--json"),
        *("--bootstrap-server", own_address(config)),
        captured=True,
    )
    if asked.returncode != 0:
        say(f"not waiting for replicas that are catching up ({complaint(asked)})")
        return []
    return [
        f"{topic['name']}-{row['partition']} on broker {broker_id}"
        for topic in json.loads(asked.stdout)
        for row in topic["partitions"]
        for broker_id in row["out_of_sync_replicas"]
        if broker_id not in row["offline_replicas"]
    ]


def own_address(config: NodeConfig) -> str:
    """Where clients find this broker: by the name in its certificate, if it has one."""
    if PROFILE in os.environ:
        listeners = config.advertised_listeners
        own = [each for each in listeners if not config.is_between_nodes(each.listener_name)]
        if own:
            return f"{own[0].host}:{own[0].port}"
    listener = config.broker_listeners[0]
    return f"{LOOPBACK if listener.host in ANY_ADDRESS else listener.host}:{listener.port}"


def complaint(asked: subprocess.CompletedProcess[Any]) -> str:
    """The last line of what a command that failed has said."""
    lines = (asked.stderr or b"").decode(errors="replace").splitlines()
    return lines[-1] if lines else f"status {asked.returncode}"


def moldau(*arguments: str, captured: bool = False) -> subprocess.CompletedProcess[Any]:
    """Run the `moldau` command to its end. Its errors go where ours go."""
    return subprocess.run(
        [*MOLDAU, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if captured else None,
        stderr=subprocess.PIPE if captured else None,
        check=False,
    )


def say(text: str) -> None:
    """One line for the log."""
    print(f"moldau-node: {text}", file=sys.stderr, flush=True)


def refuse(text: str, *, status: int) -> NoReturn:
    """One line, and the end."""
    say(text)
    sys.exit(status)


VERBS: Final[Mapping[str, Any]] = {
    "format": format_storage,
    "run": run,
    "health": health,
    "wait-in-sync": wait_in_sync,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
