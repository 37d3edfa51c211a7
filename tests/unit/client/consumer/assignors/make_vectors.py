"""Writes `vectors.json.gz`: what Apache Kafka's own assignors do with random groups.

    .venv/bin/python -m tests.unit.client.consumer.assignors.make_vectors [SEED [HISTORIES]]

Needs Java and Kafka's jars (`make setup-all`). With HISTORIES given nothing is written: as many
groups are compared with ours, and the first difference is printed.
"""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path

from tests.interop.java.jvm import CLASS_PATH, JAVA
from tests.unit.client.consumer.assignors.cases import ASSIGNORS, Case, assigned, random_history

HERE = Path(__file__).parent
ORACLE = HERE.parents[3] / "interop" / "java" / "AssignorVectors.java"
GOLDEN = HERE / "vectors.json.gz"
SEED = 6
HISTORY_COUNT = 30
ROUND_COUNT = 6


def cases(seed: int, history_count: int) -> list[Case]:
    """Histories of every assignor."""
    source = random.Random(seed)
    return [
        case
        for assignor in ASSIGNORS
        for _ in range(history_count)
        for case in random_history(source, assignor, ROUND_COUNT)
    ]


def ask_kafka(given: list[Case]) -> list[dict[str, list[str]]]:
    """What Kafka's assignors do."""
    assert JAVA is not None, "java is needed"
    run = subprocess.run(
        [JAVA, "-cp", CLASS_PATH, str(ORACLE)],
        input=json.dumps(given).encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    answers: list[dict[str, list[str]]] = json.loads(run.stdout)
    return answers


def main(arguments: list[str]) -> int:
    seed = int(arguments[0]) if arguments else SEED
    given = cases(seed, int(arguments[1]) if len(arguments) > 1 else HISTORY_COUNT)
    answers = ask_kafka(given)
    different = 0
    for case, expected in zip(given, answers, strict=True):
        if "failure" in expected:
            print("Kafka fails:", expected["failure"], json.dumps(case))
        elif assigned(case) != expected:
            different += 1
            if different == 1:
                print("case", json.dumps(case), "\nkafka", expected, "\nours ", assigned(case))
    print(f"{len(given)} cases, {different} different (seed {seed})")
    if len(arguments) > 1:
        return 1 if different else 0
    vectors = {
        "provenance": f"Apache Kafka 4.3.0's assignors, by make_vectors.py with seed {seed}",
        "cases": [
            {**case, "expected": expected}
            for case, expected in zip(given, answers, strict=True)
            if "failure" not in expected
        ],
    }
    with GOLDEN.open("wb") as opened, gzip.GzipFile(fileobj=opened, mode="wb", mtime=0) as packed:
        packed.write(json.dumps(vectors, separators=(",", ":")).encode())
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
