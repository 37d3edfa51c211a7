"""The generic checks find what is known to be wrong with pysyncobj 0.3.17: a checker that cannot
fail proves nothing.
"""

from __future__ import annotations

import pytest

from tests.kit.seeds import Violation
from tests.simulation.pysyncobj_cluster import PySyncObjCluster

SEEDS = range(200)
SAFETY = ("committed-erased", "committed-twice", "leader-lacks-committed", "log-mismatch")


def _violation(seed: int) -> str:
    try:
        PySyncObjCluster(seed).run()
    except Violation as violation:
        return violation.kind
    return ""


@pytest.mark.filterwarnings("ignore")
def test_a_safety_violation_is_found_within_200_seeds():
    found = next((kind for seed in SEEDS if (kind := _violation(seed))), "")
    assert found in SAFETY


@pytest.mark.filterwarnings("ignore")
def test_a_run_without_faults_is_clean():
    cluster = PySyncObjCluster(0)
    cluster.nemesis.stop()
    cluster.run()
    assert cluster.scheduler.counts["acknowledged"] > 100
    assert not cluster.scheduler.faults
