"""Which changes are tried: the areas of the product, and a sample of each.

Owns: the areas. Must not: run anything. Invariant: whether a change is in the sample depends on the
seed, its own name and how many come before it in its area: edits elsewhere concern only those at
the sample's edge, and a bigger sample contains the smaller one.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.kit.kinds import Kind
from tests.mutation.changes import BRANCH, COMPARISON, DROPPED, OFF_BY_ONE, Mutant, mutants

ROOT = Path(__file__).parents[2]
NODE, CLIENTS, LISTENERS = "node", "clients", "listeners"


@dataclass(frozen=True, slots=True)
class Area:
    """A part of the product, and the fast tests that are to notice changes of it. A folder inside
    one of another area is that area's no more.
    """

    folders: tuple[str, ...]
    tests: tuple[str, ...]
    """Those of the gate among them count."""
    side: str = NODE
    """The areas of one side that are asked for share a sample; another side's do not count."""
    real: tuple[str, ...] = ()
    """Real tests that count as well, for what no test of the gate can run: a blocking face needs
    threads and sockets. They have to begin at once, each change runs them in its own process."""

    @property
    def all_tests(self) -> tuple[str, ...]:
        """What is collected for the area; each once."""
        return tuple(dict.fromkeys((*self.tests, *self.real)))

    def counts(
        self, test: str, kind: Kind, *, given: tuple[str, ...] = (), is_real: bool = False
    ) -> bool:
        """Whether a test of that kind judges a change of the area. `given` stands for the area's
        own tests, and real ones of whatever area count with `is_real`.
        """
        is_wanted = test.startswith(given or self.all_tests)
        return is_wanted and (is_real or kind is Kind.GATE or test.startswith(self.real))


AREAS = {
    "quorum": Area(("moldau/raft/core",), ("tests/unit/raft",)),
    "partitions": Area(("moldau/broker/replica/core",), ("tests/unit/broker/replica",)),
    "coordinators": Area(
        (
            "moldau/broker/coordinator/core",
            "moldau/broker/coordinator/group/core",
            "moldau/broker/coordinator/transaction/core",
        ),
        (
            "tests/unit/broker/coordinator",
            "tests/unit/broker/coordinator/group",
            "tests/unit/broker/coordinator/transaction",
        ),
    ),
    "storage": Area(("moldau/storage",), ("tests/storage", "tests/unit/storage")),
    "controller": Area(
        ("moldau/controller/core",),
        (
            "tests/unit/controller/core",
            "tests/unit/controller/test_big_changes.py",
            "tests/unit/controller/test_controller.py",
            "tests/unit/controller/test_large_decisions.py",
        ),
    ),
    "producer": Area(("moldau/client/producer/core",), ("tests/unit/client",), CLIENTS),
    "consumer": Area(("moldau/client/consumer/core",), ("tests/unit/client",), CLIENTS),
    "blocking": Area(
        ("moldau/client/sync",), ("tests/unit/client",), CLIENTS, real=("tests/unit/client/sync",)
    ),
    "connector": Area(("moldau/spark_connector/core",), ("tests/unit/spark_connector",), CLIENTS),
    "sink": Area(
        ("moldau/spark_connector/sink",),
        ("tests/unit/spark_connector",),
        CLIENTS,
        real=("tests/unit/spark_connector/sink", "tests/spark/sink/test_without_spark.py"),
    ),
    "server": Area(
        ("moldau/server",),
        (
            "tests/unit/server",
            "tests/unit/runtime",
            "tests/unit/broker/test_admin_requests.py",
            "tests/unit/broker/test_answers_as_kafka.py",
            "tests/unit/broker/test_api_versions.py",
            "tests/unit/broker/test_client_quotas.py",
            "tests/unit/broker/test_decoding.py",
            "tests/unit/broker/test_lanes.py",
            "tests/unit/broker/test_large_requests.py",
            "tests/unit/broker/test_quota_reload.py",
            "tests/unit/broker/test_request_router.py",
            "tests/unit/controller/core/test_client_quota_control.py",
            "tests/unit/controller/core/test_scram_control.py",
            "tests/unit/controller/test_large_requests.py",
            "tests/unit/controller/test_listener.py",
        ),
        LISTENERS,
    ),
    "authentication": Area(
        ("moldau/runtime/authentication", "moldau/sasl", "moldau/server/authentication"),
        (
            "tests/unit/client/cluster/test_security.py",
            "tests/unit/runtime",
            "tests/unit/sasl",
            "tests/unit/server/authentication",
            "tests/unit/server/test_secured_server.py",
        ),
        LISTENERS,
    ),
    "http": Area(("moldau/node/http",), ("tests/unit/node",), LISTENERS),
}
LEAST_PER_AREA = 30
_KINDS = (COMPARISON, OFF_BY_ONE, DROPPED, BRANCH)


@functools.cache
def area_mutants(area: str) -> tuple[Mutant, ...]:
    """Every change that the files of an area offer."""
    files = {path for folder in AREAS[area].folders for path in (ROOT / folder).rglob("*.py")}
    names = sorted(path.relative_to(ROOT).as_posix() for path in files)
    others = {
        folder
        for each in AREAS.values()
        for folder in each.folders
        if folder.startswith(tuple(f"{mine}/" for mine in AREAS[area].folders))
    }.difference(AREAS[area].folders)
    return tuple(
        mutant
        for name in names
        if not name.startswith(tuple(f"{folder}/" for folder in others))
        for mutant in mutants(name, (ROOT / name).read_text())
    )


def seed_of_commit(commit: str) -> int:
    """The seed of a commit's sample, from its hash in hexadecimal: nothing is left to choose."""
    return int(commit[:8], 16)


def sample(count: int, seed: int, areas: tuple[str, ...] = tuple(AREAS)) -> dict[str, list[Mutant]]:
    """About `count` changes over those of `areas` that are of one side: in proportion to what each
    offers, but LEAST_PER_AREA at least; a quarter of each kind, as far as there are so many.
    """
    offered = {area: area_mutants(area) for area in areas}
    totals: Counter[str] = Counter()
    for area, every in offered.items():
        totals[AREAS[area].side] += len(every)
    chosen: dict[str, list[Mutant]] = {}
    for area in areas:
        total = totals[AREAS[area].side]
        share = max(LEAST_PER_AREA, round(count * len(offered[area]) / total))
        chosen[area] = []
        for kind in _KINDS:
            ranked = sorted(
                (mutant for mutant in offered[area] if mutant.kind == kind),
                key=lambda mutant: _rank(seed, mutant.key),
            )
            chosen[area] += ranked[: -(-share // len(_KINDS))]
    return chosen


def mixed(chosen: dict[str, list[Mutant]], seed: int) -> list[tuple[str, Mutant]]:
    """A sample's changes with their areas, in an order by lot: what was tried when a run is stopped
    early is a sample too.
    """
    changes = [(area, mutant) for area, every in chosen.items() for mutant in every]
    return sorted(changes, key=lambda each: _rank(seed, f"turn of {each[1].key}"))


def _rank(seed: int, key: str) -> bytes:
    return hashlib.sha256(f"{seed} {key}".encode()).digest()
