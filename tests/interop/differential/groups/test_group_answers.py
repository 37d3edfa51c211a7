"""Random sequences of group requests to our broker and to Apache Kafka: the answers are equal, but
for the reviewed list of differences (`differences.toml`), all of which are still there.

`make differential-groups SEQUENCES=n SEED=n` plays as many as one likes.
"""

from __future__ import annotations

import asyncio
import os
import time
from itertools import chain
from pathlib import Path
from typing import Final

import pytest

from tests.interop.differential.clusters import both_clusters
from tests.interop.differential.differences import DifferenceList
from tests.interop.differential.groups import known_sequences
from tests.interop.differential.groups.comparison import (
    GROUP_CONFIG,
    LIST,
    Comparison,
    Tally,
    prepare,
)
from tests.interop.differential.groups.generating import sequence
from tests.interop.java.tools import JavaTools, missing

pytestmark = [pytest.mark.interop, pytest.mark.java]

SEQUENCES: Final = 600
SEED: Final = int(os.environ.get("MOLDAU_DIFFERENTIAL_SEED", "1"))
TIMEOUT_S: Final = 900
"""Half a minute where nothing else runs."""


@pytest.mark.timeout(TIMEOUT_S)
def test_answers_to_sequences_differ_only_where_the_list_says(tmp_path: Path) -> None:
    reason = missing()
    if reason:
        pytest.skip(reason)
    tally = Tally(DifferenceList.load(LIST))
    began_s = time.monotonic()
    with (
        (tmp_path / "java.log").open("wb") as errors,
        JavaTools(errors) as java,
        both_clusters(java, tmp_path, GROUP_CONFIG) as pair,
    ):
        prepare(pair)
        drawn = (sequence(SEED, number) for number in range(SEQUENCES))
        asyncio.run(Comparison(pair, tally).run(chain(known_sequences.sequences(), drawn)))
    print(f"{tally} with seed {SEED} in {time.monotonic() - began_s:.0f} s")
    assert not tally.failure_count, f"MOLDAU_DIFFERENTIAL_SEED={SEED}\n{tally.report()}"
    unused = tally.differences.unused
    assert not unused, "differences that are not there any more:\n" + "\n".join(unused)
