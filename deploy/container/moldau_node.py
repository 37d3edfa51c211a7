#!/usr/bin/env python3
"""What a container does around a node: `moldau-node format|run|health|zone|wait-in-sync CONFIG`.

    format         formats the storage that is not formatted yet
    run            the same, then becomes the node
    health         asks the node's own HTTP listener: /readyz, or another path given behind CONFIG
    zone           asks Kubernetes for the zone of the machine, and writes it to MOLDAU_RACK_FILE
    wait-in-sync   before a broker stops: waits until no replica on a live broker lags behind, for
                   at most the number of seconds given behind CONFIG (240)

Owns the decision how storage is formatted. Configuration is CONFIG with `KAFKA_…` variables over
it, as for the node itself. MOLDAU_CLUSTER_ID is the cluster's id; MOLDAU_INITIAL_CONTROLLERS
(ID@HOST:PORT:DIRECTORYID,…), for controllers, its first voters, empty once the cluster runs.
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
import ssl
import subprocess
import sys
import time
import urllib.parse
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

SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
ZONE_VARIABLES: Final = ("NODE_NAME", "MOLDAU_ZONE_LABEL", "MOLDAU_RACK_FILE")
API_TIMEOUT_S: Final = 10.0


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
            return ["--initial-controllers", voters]
        say(
            f"{objection}, and this disk is new: controller {config.node_id} joins as an observer. "
            "To make it a voter: `moldau quorum remove-controller` for the one it was, if there "
            "is one, then `moldau quorum add-controller`"
        )
    return ["--no-initial-controllers"]


def objection_to_founding(config: NodeConfig) -> str | None:
    """What the quorum that can be reached says against this node being one of its founders."""
    addresses = ",".join(f"{host}:{port}" for host, port in config.controller_addresses)
    asked = moldau(
        *("quorum", "replication", "--json", "--bootstrap-controller", addresses),
        *("--timeout-ms", str(QUORUM_TIMEOUT_MS)),
        captured=True,
    )
    if asked.returncode != 0:
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


def zone(_path: str, _config: NodeConfig) -> int:
    """Write what the label MOLDAU_ZONE_LABEL of the machine NODE_NAME says."""
    name, label, target = (os.environ.get(each, "") for each in ZONE_VARIABLES)
    if not (name and label and target):
        refuse(f"{', '.join(ZONE_VARIABLES)} must be set", status=2)
    try:
        rack = labels_of_machine(name).get(label, "")
    except (OSError, ValueError, http.client.HTTPException) as error:
        say(f"the labels of machine {name}: {error}")
        return 1
    if not rack:
        say(f"machine {name} has no label {label}: without zones leave brokers.rack.from empty")
        return 1
    with open(target, "w", encoding="utf-8") as file:
        file.write(rack + "\n")
    return 0


def labels_of_machine(name: str) -> Mapping[str, str]:
    """As the API server knows them. Raises: OSError, ValueError, HTTPException."""
    account = os.environ.get("MOLDAU_SERVICE_ACCOUNT", SERVICE_ACCOUNT)
    with open(os.path.join(account, "token"), encoding="utf-8") as file:
        token = file.read().strip()
    trusted = ssl.create_default_context(cafile=os.path.join(account, "ca.crt"))
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
    port = int(os.environ.get("KUBERNETES_SERVICE_PORT", "443"))
    connection = http.client.HTTPSConnection(host, port, timeout=API_TIMEOUT_S, context=trusted)
    try:
        page = f"/api/v1/nodes/{urllib.parse.quote(name, safe='')}"
        connection.request("GET", page, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise ValueError(f"{page} answered {answer.status}: {' '.join(text.split())[:200]}")
    labels: Mapping[str, str] = json.loads(text)["metadata"].get("labels", {})
    return labels


def health(_path: str, config: NodeConfig, page: str = "/readyz") -> int:
    """0 when the node's HTTP listener answers 200."""
    address: str = config["moldau.http.listener"]
    if not address:
        refuse("moldau.http.listener is not set: there is nobody to ask", status=2)
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
    listener = config.broker_listeners[0]
    address = f"{LOOPBACK if listener.host in ANY_ADDRESS else listener.host}:{listener.port}"
    while True:
        waiting = catching_up(address)
        if not waiting:
            return 0
        if time.monotonic() >= deadline:
            say(f"not in sync within {limit} s: {', '.join(waiting)}")
            return 0
        time.sleep(IN_SYNC_PAUSE_S)


def catching_up(address: str) -> list[str]:
    """The replicas that are not in sync although their brokers are up; empty without an answer."""
    asked = moldau(
        *("topics", "describe", "--under-replicated-partitions", "--json"),
        *("--bootstrap-server", address),
        captured=True,
    )
    if asked.returncode != 0:
        return []
    return [
        f"{topic['name']}-{row['partition']} on broker {broker_id}"
        for topic in json.loads(asked.stdout)
        for row in topic["partitions"]
        for broker_id in row["out_of_sync_replicas"]
        if broker_id not in row["offline_replicas"]
    ]


def moldau(*arguments: str, captured: bool = False) -> subprocess.CompletedProcess[Any]:
    """Run the `moldau` command to its end. Its errors go where ours go."""
    return subprocess.run(
        [*MOLDAU, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if captured else None,
        stderr=subprocess.DEVNULL if captured else None,
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
    "zone": zone,
    "wait-in-sync": wait_in_sync,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
