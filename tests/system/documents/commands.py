"""Commands that the documents tell their readers to run, which of them no test runs, and why.

Owns finding the commands: every line of a block of shell, and every command of an indented block.
Must not run any. Invariant: a line of such a block is a command, or output that is listed here. The
first page and the quickstarts say themselves what is left out, by marks (`blocks.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from tests.system.documents.blocks import SHELL, Block, Mark, blocks_of
from tests.tidy.sources import ROOT, repository_files

_HEADING: Final = re.compile(r"^## (.*)$")
_COMMENT: Final = re.compile(r"\s+#\s.*$")
_PROMPT: Final = "$ "
#: What an indented block without prompts shows beside commands.
OUTPUT: Final = (
    "added controller 104 with directory id ",
    "DAMAGE: /var/lib/moldau/",
    "no broker can be reached: ",
)
#: Written by `make docs` from the commands themselves.
GENERATED: Final = ("docs/reference/commands.md", "docs/compatibility.md")
#: Decisions, and notes beside test data.
NOT_FOR_READERS: Final = ("docs/adr/", "tests/")


class Command(NamedTuple):
    """One command, without its comment, and where it stands."""

    document: str
    line: int
    text: str
    section: str
    """The heading of the second level above it, empty where there is none."""


def documents() -> list[str]:
    """Every document for readers, by its path below the project."""
    names = [path.relative_to(ROOT).as_posix() for path in repository_files()]
    return [
        name
        for name in sorted(names)
        if name.endswith(".md") and name not in GENERATED and not name.startswith(NOT_FOR_READERS)
    ]


def commands_of(document: str) -> list[Command]:
    """A document's commands, in order; a line that goes on after a backslash is one command."""
    return list(_commands(document, (ROOT / document).read_text(encoding="utf-8")))


def _commands(document: str, text: str, *, with_marked: bool = True) -> Iterator[Command]:
    carried = ""
    headings = {
        number: found[1]
        for number, line in enumerate(text.splitlines(), start=1)
        if (found := _HEADING.match(line))
    }
    for block in blocks_of(document, text):
        if block.language != SHELL or (block.mark is Mark.NOT_PLAYED and not with_marked):
            continue
        for number, line in _lines(block):
            joined = f"{carried} {line}" if carried else line
            if joined.endswith("\\"):
                carried = joined[:-1].rstrip()
                continue
            carried = ""
            command = _COMMENT.sub("", joined)
            if command and not command.startswith("#"):
                section = next((headings[at] for at in sorted(headings)[::-1] if at < number), "")
                yield Command(document, number, command, section)


def _lines(block: Block) -> Iterator[tuple[int, str]]:
    """Lines of shell, with their numbers; of an indented block with prompts what follows one."""
    lines = [*enumerate((line.strip() for line in block.text.splitlines()), start=block.line)]
    yield from _of_block(lines) if block.is_indented else lines


def _of_block(block: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    has_prompts = any(line.startswith(_PROMPT) for _, line in block)
    for number, line in block:
        if has_prompts and line.startswith(_PROMPT):
            yield number, line.removeprefix(_PROMPT)
        elif not has_prompts and not line.startswith(OUTPUT):
            yield number, line


# -- what no test runs -----------------------------------------------------------------------------

_INSTALLS = "tour.py installs from the sources, `make try-dist` what `make dist` has built"
_ENGINE = "needs a container engine; tests/deploy runs the same nodes and, with buildah, the image"
_KUBERNETES = "needs a Kubernetes; tests/deploy runs the rendered pods and jobs as processes"
_HELM = "helm install streams deploy/helm/moldau --set clusterId="
_POD = "kubectl exec streams-moldau-broker-1 -c broker -- moldau topics reassign "
_ITSELF = "runs the tests themselves"
_SETUP = "made the environment that this test runs in"
_MINUTES = "takes minutes; tests/{} runs the same command line on little"
_SYSTEMD = "needs root and systemd; tests/deploy/test_systemd.py has systemd read these files"

LEFT_OUT: Final[dict[str, dict[str, str]]] = {
    "CONTRIBUTING.md": {
        "make setup": _SETUP,
        "make setup-all": _SETUP,
        "make lint": _ITSELF,
        "make test": _ITSELF,
        "make test-all": _ITSELF,
        "make long": _ITSELF,
        "make fmt": "changes the sources; `make lint` checks that it has nothing to change",
        ".venv/bin/pytest tests/unit/raft/core": _ITSELF,
        ".venv/bin/pytest tests/unit/raft tests/unit/controller": _ITSELF,
        ".venv/bin/pytest tests/simulation": _ITSELF,
        ".venv/bin/pytest tests/system/quorum": _ITSELF,
        ".venv/bin/pytest tests/interop/java": _ITSELF,
    },
    "deploy/README.md": {
        "docker build -f deploy/container/Containerfile --target node -t moldau:0.1.0 .": _ENGINE,
        "docker build -f deploy/container/Containerfile --target spark -t moldau-spark:0.1.0 .": (
            _ENGINE
        ),
        **{
            f"docker compose -f deploy/compose/{words}": _ENGINE
            for words in (
                "one-node.yaml up --build --detach",
                "one-node.yaml cp moldau:/run/moldau-secrets/client/profiles/outside.properties "
                "admin.properties",
                "compose.yaml up --build --detach",
                "compose.yaml exec broker-1 moldau quorum status",
                "compose.yaml cp broker-1:/run/moldau-secrets/client/profiles/outside.properties "
                "admin.properties",
                "compose.yaml run --rm certificates",
                "compose.yaml run --rm certificates moldau certificates show /run/moldau-secrets",
            )
        },
        **dict.fromkeys(
            (
                f"{_HELM}$(moldau storage random-uuid)",
                f"{_HELM}$ID,combined=true,controllers.replicas=1,brokers.replicas=1",
                f"{_HELM}$ID,combined=true",
                f"{_HELM}$ID,brokers.replicas=5",
                *(
                    f"helm upgrade streams deploy/helm/moldau --reuse-values --set {value}"
                    for value in (
                        "quorum.founding=never",
                        "brokers.replicas=3",
                        "brokers.replicas=4",
                    )
                ),
                f"{_POD}plan --output /tmp/plan.json",
                f"{_POD}execute --from-json /tmp/plan.json --wait",
                f"{_POD}execute --without 4 --wait",
            ),
            _KUBERNETES,
        ),
        "pip install 'moldau[server]'": _INSTALLS,
        **dict.fromkeys(
            (
                "install -m 0644 deploy/systemd/moldau@.service /etc/systemd/system/",
                "install -m 0644 deploy/systemd/sysctl.conf /etc/sysctl.d/90-moldau.conf",
                "install -m 0644 deploy/systemd/sysusers.conf /usr/lib/sysusers.d/moldau.conf",
                "systemd-sysusers && sysctl --system",
                "install -D -m 0640 -g moldau deploy/systemd/broker-1.properties "
                "/etc/moldau/broker-1.properties",
                "install -d -o moldau -g moldau -m 0750 /var/lib/moldau /var/lib/moldau/broker-1",
                "sudo -u moldau /opt/moldau/bin/moldau storage format "
                "-c /etc/moldau/broker-1.properties -t CLUSTER_ID",
                "systemctl enable --now moldau@broker-1",
                "install -m 0644 deploy/systemd/moldau-pipeline@.service /etc/systemd/system/",
                "install -D -m 0640 -g moldau-pipeline archive.yaml "
                "/etc/moldau/pipelines/archive.yaml",
                "systemctl enable --now moldau-pipeline@archive",
            ),
            _SYSTEMD,
        ),
    },
    "docs/benchmarks.md": {
        "make bench": _MINUTES.format("system/test_benchmarks.py"),
        "make bench BENCH=fetch": _MINUTES.format("system/test_benchmarks.py"),
        "make bench BENCH_ARGS=--write": _MINUTES.format("system/test_benchmarks.py"),
    },
    "docs/filters.md": {
        "moldau consume orders --where 'offset == \"5\"'": (
            "is refused, as tests/unit/record_filter/test_conditions.py shows"
        ),
    },
    "docs/howto.md": {
        "moldau topics list --profile prod": "kafka-1 is the name of no machine here",
        "moldau bench produce load": _MINUTES.format("system/cli/test_log_and_bench.py"),
        "moldau bench consume load": _MINUTES.format("system/cli/test_log_and_bench.py"),
    },
    "docs/security.md": {
        r"sed -i -e 's|RULE:^CN=\[^,\]+,OU=nodes$/nodes/,||' "
        r"-e 's|^super.users=User:nodes;|moldau.node.principals=User:CN=*,OU=nodes\nsuper.users=|' "
        "secured/*/server.properties": (
            "tests/system/security/test_node_rights.py runs it on each node of a cluster"
        ),
    }
    | dict.fromkeys(
        (
            'kadmin.local -q "add_principal -randkey kafka/kafka-1.example.com"',
            'kadmin.local -q "ktadd -k kafka-1.keytab kafka/kafka-1.example.com"',
            'kadmin.local -q "add_principal -randkey orders"',
            'kadmin.local -q "ktadd -k orders.keytab orders"',
        ),
        "runs on the machine of a KDC; tests/kit/kerberos.py runs the same on one of its own",
    ),
    "docs/testing.md": dict.fromkeys(
        (
            "make mutants",
            "make mutants AREAS=server COUNT=200",
            "make mutants COUNT=600 SEED=7 WORKERS=2",
            'make mutants AREAS="producer consumer blocking connector sink" COUNT=100',
            'make mutants MUTANTS_ARGS="--areas storage --only log_recovery --results '
            '/tmp/results"',
            'make mutants MUTANTS_ARGS="--survivors /tmp/results --tests '
            'tests/storage/test_swap.py"',
        ),
        "takes hours; tests/mutation/test_mutants.py has small changes found",
    ),
    "docs/spark.md": {
        "spark-submit --master spark://head:7077 --conf spark.executor.memory=4g "
        "…/moldau/spark_connector/pipelines/submit.py delays.yaml": (
            "tests/spark/pipelines/test_command.py runs the script under spark-submit, locally"
        ),
    },
}


def commands_to_run(document: str) -> list[Command]:
    """A document's commands without those that are left out."""
    left_out = LEFT_OUT.get(document, {})
    text = (ROOT / document).read_text(encoding="utf-8")
    played = _commands(document, text, with_marked=False)
    return [each for each in played if each.text not in left_out]
