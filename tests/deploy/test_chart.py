"""The Helm chart: valid manifests, nodes that found one quorum, and values that are refused.

Rendered by `go_templates`; helm renders it too where it is, and must come to the same.
"""

from __future__ import annotations

import json
import os
from functools import cache
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from moldau.config import NodeConfig, parse_properties
from moldau.node.formatting import parse_initial_controllers
from moldau.raft import VoterDescription
from moldau.runtime.health_socket import ASK_TIMEOUT_S
from tests.deploy.command_lines import CommandLine, in_shell
from tests.deploy.command_lines import check as check_command
from tests.deploy.files import DEPLOY, problems_of
from tests.deploy.helm_chart import (
    CHART,
    CLUSTER_ID,
    HELM,
    NAMESPACE,
    ChartRefused,
    Document,
    helm_documents,
    named,
    notes,
    rendered,
)

OLDEST_KUBERNETES = "1.27"
CONTROLLED_SHUTDOWN_S = 300

EVERYTHING = yaml.safe_load("""
fullnameOverride: streams
image: {repository: example/moldau, tag: "9"}
imagePullSecrets: [{name: secret}]
config: {min.insync.replicas: 1, num.partitions: 6, log.retention.hours: 24}
quorum: {founding: never}
controllers:
  replicas: 5
  config: {moldau.log.level: DEBUG, log.retention.hours: 48}
  nodeSelector: {disk: fast}
  storage: {size: 20Gi, storageClassName: fast}
brokers:
  replicas: 4
  config: {log.segment.bytes: 1073741824, auto.create.topics.enable: false}
  storage: {disks: 3, size: 1Ti, storageClassName: fast}
  tolerations: [{key: kafka, operator: Exists}]
  affinity: {podAffinity: {}}
  podAnnotations: {note: "yes"}
  podLabels: {team: data}
  external: {enabled: true, type: NodePort, hosts: [a.example, b.example, c.example, d.example]}
service: {annotations: {a: b}}
serviceAccount: {create: false, name: someone}
networkPolicy:
  enabled: true
  clients: [{namespaceSelector: {matchLabels: {team: data}}}]
  monitoring: [{namespaceSelector: {matchLabels: {team: monitoring}}}]
""")
ONE_BROKER = {"controllers": {"replicas": 1}, "brokers": {"replicas": 1}}
LOAD_BALANCERS = {
    "networkPolicy": {"enabled": True},
    "brokers": {"external": {"enabled": True, "type": "LoadBalancer", "hosts": ["a", "b", "c"]}},
}
PLAINTEXT = {"security": {"enabled": False}}
ONE_NODE = {"combined": True, "controllers": {"replicas": 1}, "brokers": {"replicas": 1}}
THREE_NODES = {"combined": True}
LARGE = {"controllers": {"replicas": 3}, "brokers": {"replicas": 5}}
CERT_MANAGER = {"security": {"certificates": {"from": "certManager", "hosts": ["k.example"]}}}
ISSUED = yaml.safe_load("""
security:
  certificates:
    from: certManager
    hosts: [10.0.0.7]
    issuer: {name: company, kind: ClusterIssuer}
""")
EXISTING = yaml.safe_load("""
security:
  certificates: {from: existing, existing: {broker: b-tls, controller: c-tls, admin: a-tls}}
  admin: {existingSecret: the-password}
  users:
    - name: alice
      existingSecret: {name: passwords, key: of-alice}
      acls: [--producer --topic flights]
""")
USERS = yaml.safe_load("""
security:
  users:
    - name: alice
      acls: [--producer --topic flights, --consumer --topic flights --group board]
    - {name: bob.b, existingSecret: {name: passwords, key: bob}}
""")
DISKS = yaml.safe_load("""
brokers:
  storage:
    directories: [{size: 1Ti, storageClassName: fast}, {size: 4Ti, storageClassName: slow}]
  priorityClassName: important
  topologySpreadConstraints:
    - {topologyKey: rack, maxSkew: 2, whenUnsatisfiable: DoNotSchedule}
  extraVolumes: [{name: keytab, secret: {secretName: keytab, defaultMode: 0440}}]
  extraVolumeMounts: [{name: keytab, mountPath: /etc/moldau/keytab, readOnly: true}]
  extraEnv: [{name: KRB5_CONFIG, value: /etc/moldau/keytab/krb5.conf}]
""")
VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": EVERYTHING,
    "one broker": ONE_BROKER,
    "without security": PLAINTEXT,
    "one node": ONE_NODE,
    "three nodes": THREE_NODES,
    "large": LARGE,
    "cert-manager": CERT_MANAGER,
    "an issuer": ISSUED,
    "existing secrets": EXISTING,
    "users": USERS,
    "disks": DISKS,
    "all in one": {**EVERYTHING, **THREE_NODES, "controllers": {"replicas": 3}, **USERS},
    "load balancers": LOAD_BALANCERS,
    "zones of pods": {"brokers": {"rack": {"from": "pod"}}},
    "zones of machines": {"brokers": {"rack": {"from": "node", "label": "example/zone"}}},
}
MONITORED = {
    "podMonitor": {"enabled": True, "interval": "30s", "labels": {"release": "monitoring"}}
}


@pytest.fixture(scope="module")
def defaults() -> list[Document]:
    return rendered({})


def sets(documents: list[Document]) -> dict[str, Document]:
    """The two StatefulSets by their role."""
    found = [each for each in documents if each["kind"] == "StatefulSet"]
    return {each["metadata"]["labels"]["app.kubernetes.io/component"]: each for each in found}


def pod_of(documents: list[Document], role: str) -> Any:
    return sets(documents)[role]["spec"]["template"]["spec"]


def controllers_of(documents: list[Document]) -> list[NodeConfig]:
    """The nodes that are controllers, whichever pods they are in."""
    roles = sets(documents)
    found = [config for role in roles for config in configs(documents, role).values()]
    return [config for config in found if config.is_controller]


def configs(documents: list[Document], role: str) -> dict[str, NodeConfig]:
    """The configuration of each pod, under its own name, by the file that it mounts."""
    pods = sets(documents)[role]
    pod = pods["spec"]["template"]["spec"]
    [source] = [
        each["configMap"]["name"] for each in pod["volumes"] if each["name"] == "configuration"
    ]
    data = named(documents, "ConfigMap", source)["data"]
    first = pods["spec"]["ordinals"]["start"]
    names = [
        f"{pods['metadata']['name']}-{first + place}" for place in range(pods["spec"]["replicas"])
    ]
    [mount] = [
        each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "configuration"
    ]
    assert sorted(data) == sorted(f"{name}.properties" for name in names)
    return {
        name: NodeConfig(parse_properties(data[mount["subPathExpr"].replace("$(POD_NAME)", name)]))
        for name in names
    }


@pytest.mark.real
@pytest.mark.parametrize("is_upgrade", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_helm_renders_the_same(variant: str, is_upgrade: bool):
    if HELM is None:
        pytest.skip("helm is not here: the chart is rendered by tests/deploy/go_templates alone")

    def in_order(documents: list[Document]) -> list[Document]:
        return sorted(documents, key=lambda each: (each["kind"], each["metadata"]["name"]))

    expected = in_order(helm_documents(VARIANTS[variant], is_upgrade=is_upgrade))
    assert in_order(rendered(VARIANTS[variant], is_upgrade=is_upgrade)) == expected


@pytest.mark.parametrize("version", [OLDEST_KUBERNETES, kubernetes_validate.latest_version()])
@pytest.mark.parametrize("variant", VARIANTS)
def test_manifests_are_what_kubernetes_takes(variant: str, version: str):
    for document in rendered(VARIANTS[variant]):
        if document["apiVersion"] == "cert-manager.io/v1":
            assert problems_of(document, "cert-manager.json") == []
        else:
            assert is_valid(json.dumps(document), version)


@cache
def is_valid(document: str, version: str) -> bool:
    """Raises: ValidationError. Most documents are those of other values, too."""
    validated: bool = kubernetes_validate.validate(json.loads(document), version, strict=True)
    return validated


def test_the_schemas_find_mistakes(defaults: list[Document]):
    broker = yaml.safe_load(yaml.safe_dump(sets(defaults)["broker"]))
    broker["spec"]["template"]["spec"]["containers"][0]["readinessprobe"] = {}
    with pytest.raises(jsonschema.ValidationError, match="readinessprobe"):
        kubernetes_validate.validate(broker, OLDEST_KUBERNETES, strict=True)


def test_the_chart_asks_for_the_kubernetes_it_needs():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={OLDEST_KUBERNETES}.0-0"
    assert chart["appVersion"] == chart["version"]


# -- nodes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("role", ["controller", "broker"])
def test_every_node_has_a_configuration_without_a_complaint(variant: str, role: str):
    documents = rendered(VARIANTS[variant])
    is_combined = VARIANTS[variant].get("combined", False)
    if is_combined and role == "controller":
        assert set(sets(documents)) == {"broker"}
        return
    pod = pod_of(documents, role)
    voters = {each.voter_id for each in founders(documents)}
    service = sets(documents)[role]["spec"]["serviceName"]
    mounts = {each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    for name, config in configs(documents, role).items():
        assert config.warnings == ()
        assert config.is_broker is (role == "broker")
        assert config.node_id == int(name.rpartition("-")[2])
        if voters:
            assert config.is_controller is (config.node_id in voters)
        for own in config.advertised_listeners:
            if own.listener_name != "EXTERNAL":
                assert own.host == f"{name}.{service}.streams.svc.cluster.local"
        assert {directory.rpartition("/")[0] for directory in config.log_directories} <= mounts
        ports = {each["containerPort"] for each in pod["containers"][0]["ports"]}
        listening = {each.port for each in config.listeners}
        if is_combined:  # one pod for brokers that are controllers, and for others
            listening |= {9093}
        assert ports == listening | {int(config["moldau.http.listener"].rpartition(":")[2])}


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_nodes_know_the_controllers(variant: str):
    documents = rendered(VARIANTS[variant])
    controllers = controllers_of(documents)
    expected = [
        (each.host, each.port)
        for config in controllers
        for each in config.advertised_controller_listeners
    ]
    for config in [*controllers, *configs(documents, "broker").values()]:
        assert [tuple(each) for each in config.controller_addresses] == expected


@pytest.mark.parametrize(
    ("brokers", "copies", "in_sync"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (5, 3, 2)]
)
def test_topics_have_as_many_replicas_as_there_can_be(brokers: int, copies: int, in_sync: int):
    documents = rendered({"brokers": {"replicas": brokers}})
    for config in configs(documents, "broker").values():
        for name in ("offsets.topic", "transaction.state.log"):
            assert config[f"{name}.replication.factor"] == copies
        assert config["transaction.state.log.min.isr"] == in_sync
    for role in ("controller", "broker"):
        for config in configs(documents, role).values():
            assert config["default.replication.factor"] == copies
            assert config["min.insync.replicas"] == in_sync


def test_defaults_of_topics_are_set_on_the_controllers_too_which_decide_them():
    documents = rendered(EVERYTHING)
    for role in ("controller", "broker"):
        for config in configs(documents, role).values():
            assert (config["min.insync.replicas"], config["num.partitions"]) == (1, 6)
            assert config["log.retention.hours"] == (48 if role == "controller" else 24)


def test_further_keys_come_through_with_all_their_digits():
    config = next(iter(configs(rendered(EVERYTHING), "broker").values()))
    assert config["log.segment.bytes"] == 1_073_741_824
    assert config["auto.create.topics.enable"] is False
    assert len(config.log_directories) == 3
    controller = next(iter(configs(rendered({}), "controller").values()))
    assert controller["queued.max.request.bytes"] == 134_217_728


def test_several_disks_have_a_volume_each():
    documents = rendered(EVERYTHING)
    claims = sets(documents)["broker"]["spec"]["volumeClaimTemplates"]
    assert [each["metadata"]["name"] for each in claims] == ["data-0", "data-1", "data-2"]
    for claim in claims:
        assert claim["spec"]["storageClassName"] == "fast"
        assert claim["spec"]["resources"]["requests"]["storage"] == "1Ti"


# -- the quorum ------------------------------------------------------------------------------------


def founders(documents: list[Document]) -> tuple[VoterDescription, ...]:
    [name] = [
        variable["valueFrom"]["configMapKeyRef"]["name"]
        for variable in sets(documents).get("controller", sets(documents)["broker"])["spec"][
            "template"
        ]["spec"]["initContainers"][-1]["env"]
        if variable["name"] == "MOLDAU_INITIAL_CONTROLLERS"
    ]
    text = named(documents, "ConfigMap", name)["data"]["initial-controllers"]
    return parse_initial_controllers(text, "CONTROLLER") if text else ()


def test_the_founders_are_the_controllers(defaults: list[Document]):
    for voter, config in zip(
        founders(defaults), configs(defaults, "controller").values(), strict=True
    ):
        [own] = config.advertised_controller_listeners
        [endpoint] = voter.endpoints
        assert (voter.voter_id, endpoint.host, endpoint.port) == (
            config.node_id,
            own.host,
            own.port,
        )
    ids = [voter.directory_id for voter in founders(defaults)]
    assert len(set(ids)) == 3


def test_directory_ids_stay_and_are_those_of_one_cluster(defaults: list[Document]):
    assert founders(rendered({"controllers": {"replicas": 5}}))[:3] == founders(defaults)
    other = founders(rendered({"clusterId": "vAAwqmKmQ5exlmtKoxr_CA"}))
    ids = {voter.directory_id for voter in (*other, *founders(defaults))}
    assert len(ids) == 6


@pytest.mark.parametrize(
    ("founding", "is_upgrade", "founds"),
    [
        ("auto", False, True),
        ("auto", True, False),
        ("always", True, True),
        ("never", False, False),
    ],
)
def test_when_empty_disks_may_vote(founding: str, is_upgrade: bool, founds: bool):
    values = {"quorum": {"founding": founding}}
    assert bool(founders(rendered(values, is_upgrade=is_upgrade))) is founds
    assert ("quorum.founding=never" in notes(values, is_upgrade=is_upgrade)) is founds


def test_no_pod_restarts_when_the_founding_is_over(defaults: list[Document]):
    assert sets(rendered({"quorum": {"founding": "never"}})) == sets(defaults)


def test_changed_configuration_restarts_its_role_alone(defaults: list[Document]):
    changed = sets(rendered({"brokers": {"config": {"log.retention.hours": 24}}}))
    assert changed["controller"] == sets(defaults)["controller"]
    assert changed["broker"] != sets(defaults)["broker"]


def test_more_brokers_restart_no_running_node(defaults: list[Document]):
    more = sets(rendered({"brokers": {"replicas": 4}}))["broker"]["spec"]
    assert more["template"] == sets(defaults)["broker"]["spec"]["template"]


# -- pods ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["controller", "broker"])
def test_storage_is_formatted_before_the_node_runs(defaults: list[Document], role: str):
    pod = pod_of(defaults, role)
    [first], [node] = pod["initContainers"], pod["containers"]
    assert first["command"] == ["moldau-node", "format", "/etc/moldau/server.properties"]
    check_command(CommandLine(role, tuple(node["command"][1:]), may_be_a_name=False))
    assert node["command"][0] == "moldau"
    for key in ("image", "env", "volumeMounts", "securityContext"):
        assert first[key] == node[key]
    environment = {each["name"]: each.get("value") for each in node["env"]}
    assert environment["MOLDAU_CLUSTER_ID"] == CLUSTER_ID


@pytest.mark.parametrize("role", ["controller", "broker"])
def test_probes_ask_for_pages_that_exist(defaults: list[Document], role: str):
    [node] = pod_of(defaults, role)["containers"]
    page = node["readinessProbe"]["httpGet"]
    assert page["path"] == "/readyz"
    ports = {each["name"]: each["containerPort"] for each in node["ports"]}
    config = next(iter(configs(defaults, role).values()))
    assert f"0.0.0.0:{ports[page['port']]}" == config["moldau.http.listener"]
    assert page["scheme"] == "HTTPS"
    assert config["moldau.http.ssl.keystore.location"]
    [node] = pod_of(rendered(PLAINTEXT), role)["containers"]
    assert "scheme" not in node["readinessProbe"]["httpGet"]


@pytest.mark.parametrize("role", ["controller", "broker"])
def test_what_restarts_a_pod_needs_no_network(defaults: list[Document], role: str):
    [node] = pod_of(defaults, role)["containers"]
    config = next(iter(configs(defaults, role).values()))
    mounts = {each["mountPath"] for each in node["volumeMounts"] if not each.get("readOnly")}
    assert os.path.dirname(config["moldau.health.socket"]) in mounts
    for name in ("startup", "liveness"):
        probe = node[f"{name}Probe"]
        command = probe["exec"]["command"]
        assert command == ["moldau", "server", "health", "/etc/moldau/server.properties"]
        check_command(CommandLine(role, tuple(command[1:]), may_be_a_name=False))
        assert probe["timeoutSeconds"] > ASK_TIMEOUT_S


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_broker_has_the_time_that_it_may_take_to_stop(variant: str):
    pod = pod_of(rendered(VARIANTS[variant]), "broker")
    *words, limit = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert words == ["moldau-node", "wait-in-sync", "/etc/moldau/server.properties"]
    assert int(limit) + CONTROLLED_SHUTDOWN_S < pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("role", ["controller", "broker"])
def test_pods_have_no_rights_that_they_do_not_need(defaults: list[Document], role: str):
    pod = pod_of(defaults, role)
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    user = (DEPLOY / "container" / "Containerfile").read_text().partition("useradd --uid ")[2][:5]
    assert pod["securityContext"]["runAsUser"] == int(user)
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in pod["initContainers"] + pod["containers"]:
        context = container["securityContext"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False


@pytest.mark.parametrize("variant", VARIANTS)
def test_selectors_find_the_pods_of_their_role(variant: str):
    documents = rendered(VARIANTS[variant])
    assert sets(documents)
    for role, pods in sets(documents).items():
        labels = pods["spec"]["template"]["metadata"]["labels"]
        assert pods["spec"]["selector"]["matchLabels"].items() <= labels.items()
        service = named(documents, "Service", pods["spec"]["serviceName"])["spec"]
        assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
        budget = named(documents, "PodDisruptionBudget", pods["metadata"]["name"])["spec"]
        for selector in (service["selector"], budget["selector"]["matchLabels"]):
            assert selector.items() <= labels.items()
            assert selector["app.kubernetes.io/component"] == role
        assert budget["maxUnavailable"] == 1
        names = {
            each["name"] for each in pods["spec"]["template"]["spec"]["containers"][0]["ports"]
        }
        assert {each["targetPort"] for each in service["ports"]} <= names


def test_every_broker_is_reached_from_outside_where_it_says():
    for values in (EVERYTHING, LOAD_BALANCERS):
        documents = rendered(values)
        for name, config in configs(documents, "broker").items():
            service = named(documents, "Service", f"{name}-external")["spec"]
            assert service["selector"] == {"statefulset.kubernetes.io/pod-name": name}
            [port] = service["ports"]
            advertised = {each.listener_name: each for each in config.advertised_listeners}
            outside = advertised["EXTERNAL"]
            assert outside.port == port.get("nodePort", port["port"])
            hosts = values["brokers"]["external"]["hosts"]
            assert outside.host == hosts[config.node_id - 1]
            ports = pod_of(documents, "broker")["containers"][0]["ports"]
            listening = {each.listener_name: each.port for each in config.listeners}
            assert {each["name"]: each["containerPort"] for each in ports}[
                port["targetPort"]
            ] == listening["EXTERNAL"]


def test_network_policies_name_ports_of_their_pods():
    combined = {**LOAD_BALANCERS, **THREE_NODES}
    plain = {**LOAD_BALANCERS, **PLAINTEXT}
    for values in (EVERYTHING, LOAD_BALANCERS, combined, plain):
        documents = rendered(values)
        policies = [each for each in documents if each["kind"] == "NetworkPolicy"]
        assert len(policies) == len(sets(documents))
        for policy in policies:
            selector = policy["spec"]["podSelector"]["matchLabels"]
            pod = pod_of(documents, selector["app.kubernetes.io/component"])
            names = {each["name"] for each in pod["containers"][0]["ports"]}
            named_ports = {
                port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]
            }
            assert named_ports == names


def test_notes_name_pods_and_commands_that_exist(defaults: list[Document]):
    text = notes({})
    lines = [line for line in text.splitlines() if "kubectl exec" in line]
    for secret in ("demo-moldau-admin-tls", "demo-moldau-admin"):
        assert f"kubectl get secret -n streams {secret} -o" in text
    assert "without TLS" in notes(PLAINTEXT)
    assert lines
    for line in lines:
        words = line.split()
        assert words[4] in configs(defaults, "broker")
        assert words[6] == pod_of(defaults, "broker")["containers"][0]["name"]
        [command] = in_shell("NOTES.txt", line)
        check_command(command)
    service = named(defaults, "Service", "demo-moldau-bootstrap")
    assert f"{service['metadata']['name']}.streams.svc.cluster.local:9092" in text


@pytest.mark.real
@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"clusterId": ""}, "clusterId is needed"),
        ({"clusterId": "short"}, "short"),
        ({"brokers": {"config": {"node.id": 7}}}, "config"),
        ({"brokers": {"config": {"log.dirs": "/elsewhere"}}}, "config"),
        ({"brokers": {"config": {"min.insync.replicas": 2}}}, "belongs into config"),
        ({"controllers": {"config": {"num.partitions": 2}}}, "belongs into config"),
        ({"config": {"listeners": "PLAINTEXT://:1"}}, "config"),
        ({"brokers": {"replica": 7}}, "replica"),
        ({"brokers": {"external": {"enabled": True}}}, "fewer hosts than there are brokers"),
        ({"quorum": {"founding": "perhaps"}}, "perhaps"),
        ({"quorum": {"founding": True}}, "True"),
        ({"controllers": {"replicas": 0}}, "0"),
        ({"config": {"inter.broker.listener.name": "X"}}, "config"),
        ({"combined": True, "brokers": {"replicas": 2}}, "cannot be above brokers.replicas"),
        ({"security": {"certificates": {"from": "existing"}}}, "names no Secret"),
        ({"security": {"certificates": {"from": "thin air"}}}, "thin air"),
        ({"security": {"users": [{"name": "admin"}]}}, "admin"),
        ({"security": {"users": [{"name": "a", "acls": ["acls create"]}]}}, "acls create"),
        ({"brokers": {"scaleDown": "hurry"}}, "hurry"),
    ],
)
def test_values_that_cannot_be(values: dict[str, Any], words: str):
    with pytest.raises(ChartRefused, match=words):
        rendered(values)
    if HELM is not None:
        with pytest.raises(ChartRefused):
            helm_documents(values)


# -- zones -----------------------------------------------------------------------------------------


def variables(container: Any) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def test_without_zones_nothing_asks_for_them(defaults: list[Document]):
    for role in ("broker", "controller"):
        pod = pod_of(defaults, role)
        for container in pod["initContainers"] + pod["containers"]:
            assert not {"MOLDAU_RACK", "MOLDAU_RACK_FILE"} & set(variables(container))
    assert "ClusterRole" not in {each["kind"] for each in defaults}


def test_the_zone_of_the_pod_is_its_label():
    documents = rendered(VARIANTS["zones of pods"])
    [node] = pod_of(documents, "broker")["containers"]
    label = variables(node)["MOLDAU_RACK"]["fieldRef"]["fieldPath"]
    assert label == "metadata.labels['topology.kubernetes.io/zone']"
    assert node["command"] == ["moldau-node", "run", "/etc/moldau/server.properties"]
    assert "ClusterRole" not in {each["kind"] for each in documents}
    assert "MOLDAU_RACK" not in variables(pod_of(documents, "controller")["containers"][0])


def test_the_zone_of_the_machine_is_asked_for_before_the_broker_runs():
    documents = rendered(VARIANTS["zones of machines"])
    pod = pod_of(documents, "broker")
    first, [node] = pod["initContainers"][0], pod["containers"]
    assert first["command"] == ["moldau-kubernetes", "zone"]
    assert variables(first)["MOLDAU_ZONE_LABEL"] == "example/zone"
    assert variables(first)["NODE_NAME"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    target = variables(first)["MOLDAU_RACK_FILE"]
    assert variables(node)["MOLDAU_RACK_FILE"] == target
    for container in (first, node):
        shared = [each for each in container["volumeMounts"] if each["name"] == "rack"]
        assert [target.startswith(each["mountPath"] + "/") for each in shared] == [True]
    assert len(pod_of(documents, "controller")["initContainers"]) == 1


def test_only_the_container_that_asks_may_ask():
    documents = rendered(VARIANTS["zones of machines"])
    pod = pod_of(documents, "broker")
    assert pod["automountServiceAccountToken"] is False
    having = [
        each["name"]
        for each in pod["initContainers"] + pod["containers"]
        if "api" in {mount["name"] for mount in each["volumeMounts"]}
    ]
    assert having == ["zone"]
    name = f"{NAMESPACE}-demo-moldau-zones"
    [rule] = named(documents, "ClusterRole", name)["rules"]
    assert (rule["resources"], rule["verbs"]) == (["nodes"], ["get"])
    binding = named(documents, "ClusterRoleBinding", name)
    assert binding["roleRef"]["name"] == name
    [subject] = binding["subjects"]
    assert subject["name"] == pod["serviceAccountName"]


# -- the Prometheus operator -----------------------------------------------------------------------


def test_a_pod_monitor_finds_the_pods_and_gives_the_labels_that_alerts_need():
    assert "PodMonitor" not in {each["kind"] for each in rendered({})}
    documents = rendered(MONITORED)
    monitor = named(documents, "PodMonitor", "demo-moldau")
    assert monitor["metadata"]["labels"]["release"] == "monitoring"
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    for role in ("broker", "controller"):
        template = sets(documents)[role]["spec"]["template"]
        assert wanted <= template["metadata"]["labels"].items()
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"], endpoint["interval"]) == ("http", "/metrics", "30s")
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "kubernetes.yml").read_text())
    [job] = scraped["scrape_configs"]
    labels = {
        each["target_label"]: tuple(each["source_labels"])
        for each in job["relabel_configs"]
        if "target_label" in each
    }
    given = {each["targetLabel"]: each for each in endpoint["relabelings"]}
    assert given.pop("job")["replacement"] == job["job_name"]
    assert {name: tuple(each["sourceLabels"]) for name, each in given.items()} == labels
