"""Every admin request in every version, to our cluster and to Apache Kafka's: field by field the
answers are equal, but for the reviewed list of differences (`differences.toml`), all of which are
still there.
"""

from __future__ import annotations

import time
from itertools import chain

import pytest

from tests.interop.differential import (
    access_cases,
    cluster_cases,
    config_cases,
    group_cases,
    quota_cases,
    scram_cases,
    topic_cases,
)
from tests.interop.differential.asking import Pair
from tests.interop.differential.differences import DifferenceList
from tests.interop.differential.running import Tally, run

pytestmark = [pytest.mark.interop, pytest.mark.java]

SHOWN = 60
"""So many lines of a failure; the count is of all."""

TIMEOUT_S = 900
"""A minute where nothing else runs."""

FEWEST_COMPARISONS = 6_200
"""Fewer, and cases have been lost."""


@pytest.mark.timeout(TIMEOUT_S)
def test_answers_differ_only_where_the_list_says(pair: Pair, authorized_pair: Pair) -> None:
    tally = Tally(DifferenceList.load())
    began_s = time.monotonic()
    cases = chain(
        topic_cases.setup(),
        group_cases.setup(),
        cluster_cases.cases(),
        access_cases.disabled(),
        config_cases.cases(),
        group_cases.cases(),
        topic_cases.cases(),
        quota_cases.cases(),
    )
    run(pair, cases, tally)
    run(authorized_pair, access_cases.cases(), tally)
    run(authorized_pair, scram_cases.cases(), tally)
    seconds = time.monotonic() - began_s
    print(
        f"{tally.comparison_count} comparisons with Apache Kafka 4.3 (requests x versions) of "
        f"{tally.case_count} requests of {len(tally.per_api)} APIs in {seconds:.0f} s: "
        + ", ".join(f"{api} {count}" for api, count in sorted(tally.per_api.items()))
    )
    lines = tally.unexplained
    assert not lines, f"{len(lines)} differ:\n" + "\n".join(lines[:SHOWN])
    unused = tally.differences.unused
    assert not unused, "differences that are not there any more:\n" + "\n".join(unused)
    assert tally.comparison_count >= FEWEST_COMPARISONS
