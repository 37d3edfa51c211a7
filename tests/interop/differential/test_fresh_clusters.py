"""Every API that needs a coordinator, in every version, on clusters that were never used: ours and
Apache Kafka's answer alike before there is any coordinator, when there is one of both, and with
both, whichever came first and with each version of transactions.
"""

from __future__ import annotations

import pytest

from moldau.protocol.messages.p57_update_features import UpdateFeaturesRequest
from tests.interop.differential import fresh_cases, topic_cases
from tests.interop.differential.asking import Pair, build
from tests.interop.differential.clusters import CONFIG
from tests.interop.differential.conftest import running_pair
from tests.interop.differential.differences import DifferenceList
from tests.interop.differential.running import Tally, run

pytestmark = [pytest.mark.interop, pytest.mark.java]

TIMEOUT_S = 600
FEWEST_COMPARISONS = 2_300
SAFE_DOWNGRADE = 2
SHOWN = 60


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize(
    ("first", "transaction_version"),
    [
        (fresh_cases.GROUP, 1),
        (fresh_cases.TRANSACTION, 2),
        pytest.param(fresh_cases.GROUP, 2, marks=pytest.mark.long),
        pytest.param(fresh_cases.TRANSACTION, 1, marks=pytest.mark.long),
    ],
)
def test_answers_of_a_fresh_cluster(
    tmp_path_factory: pytest.TempPathFactory, first: int, transaction_version: int
) -> None:
    tally = Tally(DifferenceList.load())
    with running_pair(tmp_path_factory, CONFIG) as pair:
        run(pair, topic_cases.setup(), tally)
        for node in pair.nodes:
            fresh_cases.use_an_id(node)
        if transaction_version < 2:
            set_transaction_version(pair, transaction_version)
        for stage, kind in fresh_cases.stages(first):
            if kind is not None:
                for node in pair.nodes:
                    fresh_cases.make_coordinator(node, kind)
                pair.settle()
            run(pair, fresh_cases.cases(stage), tally)
            run(pair, [fresh_cases.made()], tally)
    print(
        f"{tally.comparison_count} comparisons of {tally.case_count} requests: "
        + ", ".join(f"{api} {count}" for api, count in sorted(tally.per_api.items()))
    )
    lines = tally.unexplained
    assert not lines, f"{len(lines)} differ:\n" + "\n".join(lines[:SHOWN])
    assert tally.comparison_count >= FEWEST_COMPARISONS


def set_transaction_version(pair: Pair, level: int) -> None:
    """Finalize an older `transaction.version`."""
    update = {
        "feature": "transaction.version",
        "max_version_level": level,
        "upgrade_type": SAFE_DOWNGRADE,
    }
    request = build(UpdateFeaturesRequest, timeout_ms=30_000, feature_updates=[update])
    for node in pair.nodes:
        answer = node.ask(request, 1)
        assert answer.error_code == 0, (node.name, answer)
    pair.settle()
