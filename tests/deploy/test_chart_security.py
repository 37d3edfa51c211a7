"""The chart's cluster is secured by default: listeners, certificates, users, rights of its jobs."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from moldau.config import NodeConfig
from moldau.config.listeners import SecurityProtocol
from tests.deploy.command_lines import CommandLine, check
from tests.deploy.helm_chart import NAMESPACE, Document, named, rendered
from tests.deploy.test_chart import (
    CERT_MANAGER,
    DISKS,
    EXISTING,
    ISSUED,
    LARGE,
    ONE_NODE,
    PLAINTEXT,
    THREE_NODES,
    USERS,
    VARIANTS,
    configs,
    pod_of,
    sets,
    variables,
)

SIZES = {"one node": ONE_NODE, "three nodes": THREE_NODES, "large": LARGE}
OUTSIDE = {
    "brokers": {"external": {"enabled": True, "type": "LoadBalancer", "hosts": ["a.example"] * 3}}
}


def all_configs(documents: list[Document]) -> list[NodeConfig]:
    return [each for role in sets(documents) for each in configs(documents, role).values()]


def wanted_secrets(documents: list[Document]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the job makes, and where it is kept."""
    [container] = named(documents, "Job", "demo-moldau-secrets")["spec"]["template"]["spec"][
        "containers"
    ]
    values = variables(container)
    return json.loads(values["MOLDAU_SECRETS"]), json.loads(values["MOLDAU_KUBERNETES_SECRETS"])


def matches(host: str, names: list[str]) -> bool:
    """Whether a certificate's names are for a host, as TLS compares them (RFC 6125)."""
    return any(host == name or f"*.{host.partition('.')[2]}" == name for name in names)


@pytest.mark.parametrize("size", SIZES)
def test_every_listener_is_secured(size: str):
    documents = rendered({**SIZES[size], **(OUTSIDE if size == "three nodes" else {})})
    found = all_configs(documents)
    assert len(found) == {"one node": 1, "three nodes": 3, "large": 8}[size]
    for config in found:
        for listener in config.listeners:
            name = listener.listener_name
            between = config.is_between_nodes(name)
            expected = SecurityProtocol.SSL if between else SecurityProtocol.SASL_SSL
            assert listener.security_protocol is expected, name
            if between:
                assert config.listener_value(name, "ssl.client.auth") == "required"
            else:
                mechanisms = config.listener_value(name, "sasl.enabled.mechanisms")
                assert set(mechanisms) == {"SCRAM-SHA-512", "SCRAM-SHA-256"}
        assert config["authorizer.class.name"].endswith("StandardAuthorizer")
        assert config["super.users"] == "User:admin"
        assert config["moldau.http.ssl.keystore.location"] == config["ssl.keystore.location"]
        assert config["allow.everyone.if.no.acl.found"] is False


def test_security_can_be_switched_off_as_a_whole():
    documents = rendered(PLAINTEXT)
    assert {each["kind"] for each in documents} == {
        *("ConfigMap", "PodDisruptionBudget", "Service", "ServiceAccount", "StatefulSet")
    }
    for config in all_configs(documents):
        assert {each.security_protocol for each in config.listeners} == {SecurityProtocol.PLAINTEXT}
    for role in ("broker", "controller"):
        [node] = pod_of(documents, role)["containers"]
        assert "MOLDAU_BOOTSTRAP_SERVER" in variables(node)
        assert {"tls", "admin"}.isdisjoint(each["name"] for each in node["volumeMounts"])


# -- certificates ----------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [*SIZES.values(), OUTSIDE], ids=[*SIZES, "outside"])
@pytest.mark.parametrize("source", ["job", "certManager"])
def test_certificates_are_for_what_nodes_are_called(values: dict[str, Any], source: str):
    documents = rendered({**values, "security": {"certificates": {"from": source}}})
    for role in sets(documents):
        if source == "job":
            names = wanted_secrets(documents)[0]["nodes"][f"demo-moldau-{role}"]
        else:
            names = named(documents, "Certificate", f"demo-moldau-{role}")["spec"]["dnsNames"]
        for config in configs(documents, role).values():
            for each in config.advertised_listeners:
                assert matches(each.host, names), (each.host, names)
        assert f"metrics.demo-moldau.{NAMESPACE}.svc" in names
    servers = named(documents, "ConfigMap", "demo-moldau-client")["data"]["admin.properties"]
    bootstrap = re.search(r"bootstrap.servers=(.*):9092", servers)
    assert bootstrap is not None
    broker = f"demo-moldau-{'broker'}"
    made = (
        wanted_secrets(documents)[0]["nodes"][broker]
        if source == "job"
        else named(documents, "Certificate", broker)["spec"]["dnsNames"]
    )
    assert bootstrap[1] in made


@pytest.mark.parametrize("variant", ["defaults", "three nodes", "cert-manager", "existing secrets"])
def test_pods_mount_secrets_that_come_into_being(variant: str):
    """The job or cert-manager makes them, or the values say that they exist."""
    values = VARIANTS[variant]
    documents = rendered(values)
    made: set[str] = set()
    if variant in ("defaults", "three nodes", "cert-manager"):
        _, kept = wanted_secrets(documents)
        made |= {*kept.get("stores", {}).values()}
        made |= {secret for secret, _ in kept["passwords"].values()}
    made |= {each["spec"]["secretName"] for each in documents if each["kind"] == "Certificate"}
    if variant == "existing secrets":
        made |= {"b-tls", "c-tls", "a-tls", "the-password", "passwords"}
        assert "Role" not in {each["kind"] for each in documents}
    used: set[str] = set()
    for role in sets(documents):
        for volume in pod_of(documents, role)["volumes"]:
            if "secret" in volume:
                assert volume["secret"]["defaultMode"] == 0o440
                used.add(volume["secret"]["secretName"])
            for source in volume.get("projected", {}).get("sources", ()):
                used.add(source["secret"]["name"])
    assert used <= made
    assert len(used) >= 3


@pytest.mark.parametrize("variant", VARIANTS)
def test_secrets_are_mounted_so_that_renewed_ones_show(variant: str):
    """A file that is mounted by itself (subPath) would stay as it was."""
    documents = rendered(VARIANTS[variant])
    for role in sets(documents):
        pod = pod_of(documents, role)
        for container in pod["containers"]:
            for mount in container["volumeMounts"]:
                if mount["name"] in ("tls", "admin", "client"):
                    assert not {"subPath", "subPathExpr"} & mount.keys()
                    assert mount["readOnly"] is True
            paths = [mount["mountPath"] for mount in container["volumeMounts"]]
        for config in configs(documents, role).values():
            for key in ("ssl.keystore.location", "ssl.truststore.location"):
                if config[key]:
                    assert any(config[key].startswith(f"{path}/") for path in paths)


def test_cert_manager_makes_what_nodes_read():
    documents = rendered(CERT_MANAGER)
    for whose, unit in (("broker", "nodes"), ("controller", "nodes"), ("admin", "clients")):
        spec = named(documents, "Certificate", f"demo-moldau-{whose}")["spec"]
        assert spec["subject"]["organizationalUnits"] == [unit]
        assert spec["additionalOutputFormats"] == [{"type": "CombinedPEM"}]
        assert spec["privateKey"]["encoding"] == "PKCS8"
        assert spec["issuerRef"]["name"] == "demo-moldau-authority"
        assert (spec["duration"], spec["renewBefore"]) == ("8760h", "1440h")
    assert named(documents, "Certificate", "demo-moldau-admin")["spec"]["commonName"] == "admin"
    assert "k.example" in named(documents, "Certificate", "demo-moldau-broker")["spec"]["dnsNames"]
    own = named(documents, "Issuer", "demo-moldau-authority")["spec"]["ca"]["secretName"]
    assert own == named(documents, "Certificate", "demo-moldau-authority")["spec"]["secretName"]


def test_another_issuer_takes_the_place_of_the_charts():
    documents = rendered(ISSUED)
    assert "Issuer" not in {each["kind"] for each in documents}
    spec = named(documents, "Certificate", "demo-moldau-broker")["spec"]
    assert (spec["issuerRef"]["name"], spec["issuerRef"]["kind"]) == ("company", "ClusterIssuer")
    assert spec["ipAddresses"] == ["10.0.0.7"]
    assert "10.0.0.7" not in spec["dnsNames"]


# -- the jobs --------------------------------------------------------------------------------------


def jobs(documents: list[Document]) -> dict[str, Any]:
    """The pods of jobs, by name."""
    found = {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in documents
        if each["kind"] == "Job"
    }
    for each in documents:
        if each["kind"] == "CronJob":
            template = each["spec"]["jobTemplate"]["spec"]["template"]
            found[f"{each['metadata']['name']}, renewing"] = template["spec"]
    return found


def test_jobs_have_no_rights_that_they_do_not_need():
    documents = rendered(USERS, is_upgrade=True, brokers_before=5)
    found = jobs(documents)
    assert sorted(found) == [
        "demo-moldau-after-scaling",
        "demo-moldau-before-scaling",
        "demo-moldau-secrets",
        "demo-moldau-secrets, renewing",
        "demo-moldau-users",
    ]
    for name, pod in found.items():
        assert pod["automountServiceAccountToken"] is name.startswith("demo-moldau-secrets")
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["resources"]["limits"]
            assert {"name": "temporary", "mountPath": "/tmp"} in container["volumeMounts"]


@pytest.mark.parametrize("variant", ["defaults", "users", "cert-manager", "three nodes"])
def test_the_job_may_change_the_secrets_that_it_makes_and_no_others(variant: str):
    documents = rendered(VARIANTS[variant])
    _, kept = wanted_secrets(documents)
    made = {secret for secret, _ in kept["passwords"].values()} | {*kept.get("stores", {}).values()}
    made |= {kept["authority"]} if "authority" in kept else set()
    roles = [each for each in documents if each["kind"] == "Role"]
    for role in roles:
        creating, changing = role["rules"]
        assert (creating["resources"], creating["verbs"]) == (["secrets"], ["create"])
        assert changing["verbs"] == ["get", "update"]
        assert set(changing["resourceNames"]) == made
    # The hook's rights go with it; those of the job that renews stay.
    hooks = [each for each in roles if "annotations" in each["metadata"]]
    assert [each["metadata"]["name"] for each in hooks] == ["demo-moldau-secrets-hook"]
    assert len(roles) == (1 if variant == "cert-manager" else 2)
    for each in documents:
        if each["kind"] in ("Job", "CronJob"):
            pod = jobs([each]).popitem()[1]
            if "secrets" in each["metadata"]["name"]:
                named(documents, "ServiceAccount", pod["serviceAccountName"])
                named(documents, "RoleBinding", pod["serviceAccountName"])


def test_users_are_given_what_the_values_say():
    documents = rendered(USERS)
    [container] = jobs(documents)["demo-moldau-users"]["containers"]
    wanted = json.loads(variables(container)["MOLDAU_USERS"])
    assert [user["name"] for user in wanted] == ["alice", "bob.b"]
    for words in wanted[0]["acls"]:
        check(CommandLine("acls", ("acls", "create", "--allow", "a", *words.split()), False))
    [volume] = [
        each
        for each in jobs(documents)["demo-moldau-users"]["volumes"]
        if each["name"] == "passwords"
    ]
    sources = {
        item["path"]: (source["secret"]["name"], item["key"])
        for source in volume["projected"]["sources"]
        for item in source["secret"]["items"]
    }
    assert sources == {"alice": ("demo-moldau-users", "alice"), "bob.b": ("passwords", "bob")}
    assert wanted_secrets(documents)[0]["passwords"] == ["admin", "alice"]
    assert jobs(rendered(EXISTING)).keys() == {"demo-moldau-users"}


# -- more, and fewer -------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [{}, THREE_NODES], ids=["apart", "combined"])
def test_more_brokers_restart_no_running_pod(values: dict[str, Any]):
    more = rendered({**values, "brokers": {"replicas": 5}}, is_upgrade=True, brokers_before=3)
    before = sets(rendered(values))["broker"]["spec"]["template"]
    assert sets(more)["broker"]["spec"]["template"] == before
    assert not [name for name in jobs(more) if "scaling" in name]
    assert wanted_secrets(more)[0] == wanted_secrets(rendered(values))[0]


def test_a_broker_that_goes_is_empty_first_and_removed_then():
    documents = rendered({"brokers": {"replicas": 3}}, is_upgrade=True, brokers_before=5)
    before = named(documents, "Job", "demo-moldau-before-scaling")
    after = named(documents, "Job", "demo-moldau-after-scaling")
    assert before["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
    assert after["metadata"]["annotations"]["helm.sh/hook"] == "post-upgrade"
    [first], [then] = (each["spec"]["template"]["spec"]["containers"] for each in (before, after))
    assert first["command"] == ["moldau-kubernetes", "empty", "refuse", "4", "5"]
    assert then["command"] == ["moldau-kubernetes", "unregister", "4", "5"]
    assert before["spec"]["backoffLimit"] == 0
    assert variables(first)["MOLDAU_PROFILE"] == "admin"
    moving = {"brokers": {"replicas": 3, "scaleDown": "move"}, **PLAINTEXT}
    documents = rendered(moving, is_upgrade=True, brokers_before=4)
    [first] = named(documents, "Job", "demo-moldau-before-scaling")["spec"]["template"]["spec"][
        "containers"
    ]
    assert first["command"] == ["moldau-kubernetes", "empty", "move", "4"]
    assert "MOLDAU_BOOTSTRAP_SERVER" in variables(first)


# -- pods ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_pods_are_spread_and_budgets_let_one_go(variant: str):
    documents = rendered(VARIANTS[variant])
    for role, pods in sets(documents).items():
        spec = pods["spec"]["template"]["spec"]
        labels = pods["spec"]["template"]["metadata"]["labels"]
        [spread] = spec["topologySpreadConstraints"]
        assert spread["labelSelector"]["matchLabels"].items() <= labels.items()
        assert spread["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == role
        budget = named(documents, "PodDisruptionBudget", pods["metadata"]["name"])
        assert budget["spec"]["maxUnavailable"] == 1
        for container in spec["containers"] + spec["initContainers"]:
            assert container["resources"]["limits"]["memory"]
            assert container["resources"]["requests"]["cpu"]


def test_every_log_directory_has_its_own_storage_class():
    documents = rendered(DISKS)
    claims = sets(documents)["broker"]["spec"]["volumeClaimTemplates"]
    assert [
        (each["spec"]["storageClassName"], each["spec"]["resources"]["requests"]["storage"])
        for each in claims
    ] == [("fast", "1Ti"), ("slow", "4Ti")]
    config = next(iter(configs(documents, "broker").values()))
    assert len(config.log_directories) == 2


def test_further_volumes_and_variables_are_the_nodes():
    pod = pod_of(rendered(DISKS), "broker")
    assert pod["priorityClassName"] == "important"
    assert pod["topologySpreadConstraints"][0]["topologyKey"] == "rack"
    assert "keytab" in {each["name"] for each in pod["volumes"]}
    for container in pod["containers"] + pod["initContainers"]:
        assert "/etc/moldau/keytab" in {each["mountPath"] for each in container["volumeMounts"]}
        assert variables(container)["KRB5_CONFIG"] == "/etc/moldau/keytab/krb5.conf"
    other = pod_of(rendered(DISKS), "controller")
    assert "keytab" not in {each["name"] for each in other["volumes"]}


def test_values_win_over_the_charts_settings_of_security():
    values = {
        "config": {"super.users": "User:admin;User:ops"},
        "brokers": {"config": {"listener.name.client.sasl.enabled.mechanisms": "SCRAM-SHA-512"}},
    }
    for config in all_configs(rendered(values)):
        assert config["super.users"] == "User:admin;User:ops"
        assert config.warnings == ()
        if config.is_broker:
            assert config.listener_value("CLIENT", "sasl.enabled.mechanisms") == ("SCRAM-SHA-512",)
