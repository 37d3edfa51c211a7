"""Runs cases against both clusters, and keeps count.

Owns the order: every case in every version of its API; what changed is visible before it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.registry import request_class
from moldau.server.apis import BROKER_APIS
from tests.interop.differential.asking import Ground, Pair, build
from tests.interop.differential.comparing import Divergence, compare, normalise
from tests.interop.differential.differences import DifferenceList


@dataclass(frozen=True)
class Case:
    """One kind of request.

    Args:
        api_key: of which API.
        name: names the case in the list of differences.
        fields: the request's fields, as `build` takes them, for one version and one node.
        changes: whether it may change the cluster: what follows waits until both show it.
        versions: which versions; None for all that we serve.
    """

    api_key: ApiKey
    name: str
    fields: Callable[[Ground], dict[str, Any]]
    changes: bool = False
    versions: tuple[int, ...] | None = None

    @property
    def api(self) -> str:
        """The API's name."""
        return request_class(self.api_key).__name__.removesuffix("Request")

    @property
    def asked_versions(self) -> Iterable[int]:
        """The versions in which both are asked."""
        served = BROKER_APIS[self.api_key]
        return self.versions or range(served.min_version, served.max_version + 1)


@dataclass
class Tally:
    """What a run compared and found."""

    differences: DifferenceList
    case_count: int = 0
    per_api: dict[str, int] = field(default_factory=dict)
    unexplained: list[str] = field(default_factory=list)

    @property
    def comparison_count(self) -> int:
        """Requests times versions."""
        return sum(self.per_api.values())

    def note(self, case: Case, api_version: int, found: Iterable[Divergence]) -> None:
        """One comparison."""
        self.per_api[case.api] = self.per_api.get(case.api, 0) + 1
        for each in self.differences.unexplained(case.api, case.name, found):
            self.unexplained.append(
                f"{case.api} v{api_version} {case.name}: {each.path}: "
                f"ours {each.ours}, Kafka's {each.kafka}"
            )


def run(pair: Pair, cases: Iterable[Case], tally: Tally) -> None:
    """Ask both every case in every version, and note what differs."""
    unsettled = True
    for case in cases:
        asked = False
        for api_version in case.asked_versions:
            if unsettled and not case.changes:
                pair.settle()
                unsettled = False

            def request(ground: Ground, case: Case = case) -> Any:
                return build(request_class(case.api_key), **case.fields(ground))

            answers = pair.ask_both(request, api_version)
            if answers is None:
                continue
            asked = True
            unsettled = unsettled or case.changes
            plain = (
                normalise(answer, node) for answer, node in zip(answers, pair.nodes, strict=True)
            )
            tally.note(case, api_version, compare(*plain))
        assert asked, f"no version of {case.api} can say {case.name}"
        tally.case_count += 1
