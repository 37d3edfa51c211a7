"""compose.yaml: three controllers, three brokers and Spark that fit together."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from moldau.config import NodeConfig
from moldau.config.listeners import SecurityProtocol
from moldau.node.formatting import parse_initial_controllers
from moldau.protocol.types import uuid_from_base64
from tests.deploy.command_lines import CommandLine, check
from tests.deploy.files import DEPLOY, ROOT, compose, compose_variables, problems_of

CONTROLLERS = ("controller-101", "controller-102", "controller-103")
BROKERS = ("broker-1", "broker-2", "broker-3")
CONTROLLED_SHUTDOWN_S = 300
SECRETS = "/run/moldau-secrets"
SITE_PACKAGES = "/opt/moldau/lib/python3.11/site-packages/"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = compose()["services"]
    return found


def config_of(services: dict[str, Any], name: str) -> NodeConfig:
    """What a node of compose reads: the mounted file, with its environment over it."""
    service = services[name]
    [mounted] = [text for text in service["volumes"] if ":/etc/moldau/server.properties" in text]
    path = DEPLOY / "compose" / mounted.partition(":")[0]
    return NodeConfig.load(str(path), {}, service["environment"])


def test_it_is_what_compose_takes():
    assert problems_of(compose(), "compose.json") == []


def test_the_schema_finds_mistakes():
    wrong = {**compose(), "services": {"a": {"image": "x:1", "comand": []}, "b": {}}}
    places = {each.partition(":")[0] for each in problems_of(wrong, "compose.json")}
    assert places == {"$.services.a", "$.services.b"}


def test_variables_are_fresh_ids_each():
    variables = compose_variables()
    assert sorted(variables) == ["CLUSTER_ID", *(f"DIRECTORY_ID_{n}" for n in (101, 102, 103))]
    assert len({uuid_from_base64(text) for text in variables.values()}) == len(variables)


@pytest.mark.parametrize("name", CONTROLLERS + BROKERS)
def test_every_node_has_a_configuration_without_a_complaint(services: dict[str, Any], name: str):
    config = config_of(services, name)
    role, _, number = name.partition("-")
    assert config.warnings == ()
    assert config.process_roles == (role,)
    assert config.node_id == int(number)
    inside = [e for e in config.advertised_listeners if e.listener_name != "EXTERNAL"]
    assert {each.host for each in inside} == {name}
    assert {str(each) for each in config.controller_addresses} == {
        str(each) for each in config_of(services, CONTROLLERS[0]).controller_addresses
    }
    assert [each.host for each in config.controller_addresses] == list(CONTROLLERS)
    [volume] = [text for text in services[name]["volumes"] if text.startswith(f"{name}:")]
    assert f"secrets:{SECRETS}:ro" in services[name]["volumes"]
    assert config.metadata_log_directory.startswith(volume.partition(":")[2] + "/")


#: Set on the brokers, and decided by controllers for topics that do not say it themselves.
DECIDED_BY_CONTROLLERS = ("default.replication.factor", "min.insync.replicas", "num.partitions")


def test_controllers_have_what_they_decide_for_topics(services: dict[str, Any]):
    values = {
        tuple(config_of(services, name)[key] for key in DECIDED_BY_CONTROLLERS)
        for name in CONTROLLERS + BROKERS
    }
    assert values == {(3, 2, 1)}


def test_controllers_agree_on_who_votes_first(services: dict[str, Any]):
    texts = {services[name]["environment"]["MOLDAU_INITIAL_CONTROLLERS"] for name in CONTROLLERS}
    [text] = texts
    voters = parse_initial_controllers(text, "CONTROLLER")
    for name, voter in zip(CONTROLLERS, voters, strict=True):
        config = config_of(services, name)
        [endpoint] = voter.endpoints
        [own] = config.advertised_controller_listeners
        assert (voter.voter_id, endpoint.host, endpoint.port) == (config.node_id, name, own.port)
        assert own.port == config.controller_listeners[0].port
    ids = {services[name]["environment"]["MOLDAU_CLUSTER_ID"] for name in CONTROLLERS + BROKERS}
    assert ids == {compose_variables()["CLUSTER_ID"]}


def test_published_ports_lead_to_listeners_that_advertise_them(services: dict[str, Any]):
    for name in BROKERS:
        config = config_of(services, name)
        [published] = services[name]["ports"]
        _, outside, inside = published.split(":")
        listening = {each.listener_name: each.port for each in config.listeners}
        advertised = {each.listener_name: each for each in config.advertised_listeners}
        assert listening["EXTERNAL"] == int(inside)
        assert (advertised["EXTERNAL"].host, advertised["EXTERNAL"].port) == (
            "localhost",
            int(outside),
        )
    published = [text.split(":")[1] for each in services.values() for text in each.get("ports", [])]
    assert len(set(published)) == len(published)


def test_a_broker_has_the_time_that_it_may_take_to_stop(services: dict[str, Any]):
    for name in CONTROLLERS + BROKERS:
        assert int(services[name]["stop_grace_period"].removesuffix("s")) > CONTROLLED_SHUTDOWN_S


def test_volumes_are_declared_and_mounted_files_exist(services: dict[str, Any]):
    declared, used = set(compose()["volumes"]), set()
    for service in services.values():
        for text in service.get("volumes", []):
            source = text.partition(":")[0]
            if source.startswith("."):
                assert (DEPLOY / "compose" / source).exists(), source
            else:
                used.add(source)
    assert used == declared


def test_builds_name_stages_that_exist(services: dict[str, Any]):
    stages = re.findall(r"^FROM \S+ AS (\S+)$", containerfile(), re.MULTILINE)
    for service in services.values():
        if (build := service.get("build")) is not None:
            assert (DEPLOY / "compose" / build["context"]).resolve() == ROOT
            assert (ROOT / build["dockerfile"]).read_text() == containerfile()
            assert build["target"] in stages


def containerfile() -> str:
    return (DEPLOY / "container" / "Containerfile").read_text()


def test_dependencies_and_profiles(services: dict[str, Any]):
    for name, service in services.items():
        for needed in service.get("depends_on", []):
            assert needed in services, name
            if of_needed := set(services[needed].get("profiles", [])):
                assert set(service["profiles"]) <= of_needed, name
    assert {name for name, each in services.items() if not each.get("profiles")} == {
        *CONTROLLERS,
        *BROKERS,
        "certificates",
    }


def test_an_image_with_java_is_built_for_spark_alone(services: dict[str, Any]):
    for name, service in services.items():
        if service.get("build", {}).get("target") == "spark":
            assert {"spark", "pipeline"} & set(service["profiles"]), name
    stages = re.split(r"^(?=FROM )", containerfile(), flags=re.MULTILINE)
    assert ["spark" in each.partition("\n")[0] for each in stages if "jre" in each] == [True]


# -- one node --------------------------------------------------------------------------------------


def test_one_node_is_a_whole_cluster_of_one_service():
    document = compose("one-node.yaml")
    assert problems_of(document, "compose.json") == []
    assert sorted(document["services"]) == ["certificates", "moldau"]
    service = document["services"]["moldau"]
    assert service["build"]["target"] == "node"
    config = config_of(document["services"], "moldau")
    assert config.warnings == ()
    assert config.is_broker
    assert config.is_controller
    [voter] = parse_initial_controllers(
        service["environment"]["MOLDAU_INITIAL_CONTROLLERS"], "CONTROLLER"
    )
    [controller] = config.advertised_controller_listeners
    [endpoint] = voter.endpoints
    assert (voter.voter_id, endpoint.port) == (config.node_id, controller.port)
    assert [str(each) for each in config.controller_addresses] == [f"localhost:{controller.port}"]
    replicas = [key for key in config.explicit if key.endswith(("replication.factor", "min.isr"))]
    assert {config[key] for key in replicas} == {1}
    assert len(replicas) == 4


def test_the_one_node_is_reached_where_it_says():
    services = compose("one-node.yaml")["services"]
    config = config_of(services, "moldau")
    [published] = services["moldau"]["ports"]
    _, outside, inside = published.split(":")
    advertised = {each.listener_name: each for each in config.advertised_listeners}
    listening = {each.listener_name: each.port for each in config.listeners}
    assert (advertised["EXTERNAL"].host, advertised["EXTERNAL"].port) == (
        "localhost",
        int(outside),
    )
    assert listening["EXTERNAL"] == int(inside)
    assert advertised["CLIENT"].host in services
    assert advertised["CLIENT"].port == listening["CLIENT"]
    assert sorted(compose("one-node.yaml")["volumes"]) == ["authority", "moldau", "secrets"]
    assert "moldau:/var/lib/moldau" in services["moldau"]["volumes"]


# -- security --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["compose.yaml", "one-node.yaml"])
def test_every_listener_is_secured(name: str):
    services = compose(name)["services"]
    nodes = [
        each
        for each, service in services.items()
        if f"secrets:{SECRETS}:ro" in service.get("volumes", [])
        and service["image"].startswith("moldau:")
    ]
    assert len(nodes) == (6 if name == "compose.yaml" else 1)
    for each in nodes:
        config = config_of(services, each)
        for listener in config.listeners:
            between = config.is_between_nodes(listener.listener_name)
            expected = SecurityProtocol.SSL if between else SecurityProtocol.SASL_SSL
            assert listener.security_protocol is expected
            client_auth = config.listener_value(listener.listener_name, "ssl.client.auth")
            assert client_auth == ("required" if between else "none")
        assert config["authorizer.class.name"].endswith("StandardAuthorizer")
        assert config["super.users"] == "User:admin"


@pytest.mark.parametrize("name", ["compose.yaml", "one-node.yaml"])
def test_certificates_are_made_for_what_nodes_are_called(name: str):
    services = compose(name)["services"]
    wanted = json.loads(services["certificates"]["environment"]["MOLDAU_SECRETS"])
    assert services["certificates"]["command"][1:] == ["/var/lib/moldau", SECRETS]
    assert f"secrets:{SECRETS}" in services["certificates"]["volumes"]
    for each, service in services.items():
        if "KAFKA_NODE_ID" not in service.get("environment", {}) and each != "moldau":
            continue
        needed = service["depends_on"]["certificates"]
        assert needed == {"condition": "service_completed_successfully"}
        config = config_of(services, each)
        home, _, file_name = config["ssl.keystore.location"].rpartition("/")
        assert (os.path.dirname(home), file_name) == (SECRETS, "certificate.pem")
        hosts = wanted["nodes"][os.path.basename(home)]
        assert {endpoint.host for endpoint in config.advertised_listeners} <= set(hosts)
        if config.is_controller:
            path = service["environment"]["MOLDAU_ADMIN_PASSWORD_FILE"]
            assert path == f"{SECRETS}/admin.password"
            assert service["environment"]["MOLDAU_CONTROLLERS_PROFILE"] == "controllers"
            controllers = ",".join(f"{host}:{port}" for host, port in config.controller_addresses)
            assert wanted["controllers"] == controllers
        if config.is_broker:
            assert service["environment"]["MOLDAU_CONFIG_HOME"] == f"{SECRETS}/client"
            assert service["environment"]["MOLDAU_PROFILE"] in wanted["profiles"]
    assert wanted["passwords"] == ["admin"]


def test_profiles_name_where_brokers_are_reached(services: dict[str, Any]):
    profiles = json.loads(services["certificates"]["environment"]["MOLDAU_SECRETS"])["profiles"]
    for profile, listener in (("admin", "CLIENT"), ("outside", "EXTERNAL")):
        found = []
        for name in BROKERS:
            advertised = config_of(services, name).advertised_listeners
            found += [f"{e.host}:{e.port}" for e in advertised if e.listener_name == listener]
        assert profiles[profile].split(",") == found


@pytest.mark.real
@pytest.mark.parametrize("name", ["compose.yaml", "one-node.yaml"])
def test_compose_itself_takes_the_file(name: str):
    docker = shutil.which("docker")
    command = [docker or "", "compose", "--file", str(DEPLOY / "compose" / name), "config", "-q"]
    asked = [*command[:2], "version"]
    if docker is None or subprocess.run(asked, capture_output=True, check=False).returncode != 0:
        pytest.skip("docker's compose plugin is not here: the file is checked by our schema alone")
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


# -- Spark -----------------------------------------------------------------------------------------


def test_spark_is_started_by_classes_that_pyspark_brings(services: dict[str, Any]):
    pyspark = pytest.importorskip("pyspark")
    home = Path(pyspark.__file__).parent
    [jar] = home.glob("jars/spark-core_*.jar")
    with zipfile.ZipFile(jar) as classes:
        names = set(classes.namelist())
    for name in ("spark-master", "spark-worker"):
        program, main_class, *_ = services[name]["command"]
        assert (home / "bin" / program).exists()
        assert main_class.replace(".", "/") + ".class" in names


def test_spark_addresses_agree(services: dict[str, Any]):
    master = services["spark-master"]["command"]
    host, port = (master[master.index(option) + 1] for option in ("--host", "--port"))
    url = f"spark://{host}:{port}"
    assert host in services
    assert services["spark-worker"]["command"][-1] == url
    pipeline = services["pipeline"]["command"]
    shell, _, script, _, *pipeline = pipeline
    assert shell == "sh"
    assert script.endswith('; exec "$$@"')
    assert f"cat {SECRETS}/admin.password" in script
    assert pipeline[:3] == ["spark-submit", "--master", url]
    exposed = re.search(r"^EXPOSE (7077.*)$", containerfile(), re.MULTILINE)
    assert exposed is not None
    for name in ("spark-master", "spark-worker"):
        command = services[name]["command"]
        web_port = command[command.index("--webui-port") + 1]
        assert services[name]["ports"][0].endswith(f":{web_port}")
        assert {web_port, port} <= set(exposed[1].split())


def test_the_pipeline_is_valid_and_its_script_exists(services: dict[str, Any]):
    from moldau.spark_connector.pipelines.model import ParquetSink
    from moldau.spark_connector.pipelines.pipeline_file import load_pipelines

    *_, script, mounted = services["pipeline"]["command"]
    assert (ROOT / script.removeprefix(SITE_PACKAGES)).exists()
    python = re.search(r"^FROM python:(3\.\d+)-", containerfile(), re.MULTILINE)
    assert python is not None
    assert script.startswith(f"/opt/moldau/lib/python{python[1]}/site-packages/")
    [source] = [
        text.partition(":")[0] for text in services["pipeline"]["volumes"] if mounted in text
    ]
    variables = {"MOLDAU_PASSWORD": "a secret"}
    [pipeline] = load_pipelines(DEPLOY / "compose" / source, variables).pipelines
    assert pipeline.source.options["kafka.sasl.password"] == "a secret"
    trusted = pipeline.source.options["kafka.ssl.truststore.location"]
    for name in ("pipeline", "spark-worker"):
        assert f"secrets:{os.path.dirname(trusted)}:ro" in services[name]["volumes"]
    servers = pipeline.source.options["kafka.bootstrap.servers"].split(",")
    for name, address in zip(BROKERS, servers, strict=True):
        endpoints = config_of(services, name).advertised_listeners
        assert address in [f"{each.host}:{each.port}" for each in endpoints]
    assert isinstance(pipeline.sink, ParquetSink)
    for path in (pipeline.sink.path, pipeline.checkpoint):
        for name in ("pipeline", "spark-worker"):
            shared = [text.partition(":")[2] for text in services[name]["volumes"]]
            assert any(path.startswith(f"{each}/") for each in shared), (path, name)


def test_a_pipeline_runs_with_the_command_that_the_comment_names():
    check(CommandLine("compose.yaml", ("pipeline", "run", "FILE"), may_be_a_name=False))


def test_monitoring_reads_our_files(services: dict[str, Any]):
    for name, file_name in (("prometheus", "prometheus.yml"), ("grafana", "dashboards")):
        sources = [text.split(":")[0] for text in services[name]["volumes"]]
        folders = [DEPLOY / "compose" / source for source in sources if source.startswith(".")]
        assert any((folder / file_name).exists() for folder in folders), name
