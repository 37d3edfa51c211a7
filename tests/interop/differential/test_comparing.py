"""The comparison finds what differs: one field at a time, in answers that were equal."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from moldau.protocol.messages.p03_metadata import MetadataResponse
from moldau.protocol.messages.p32_describe_configs import DescribeConfigsResponse
from tests.interop.differential.asking import CLOSED, Node, build
from tests.interop.differential.comparing import compare, normalise
from tests.interop.differential.differences import Difference, DifferenceList

OURS = Node("ours", "a:1", {":1000": ":PORT"}, {"t": UUID(int=1 << 90)})
KAFKA = Node("kafka", "b:2", {":2000": ":PORT"}, {"t": UUID(int=1 << 91)})


def described(port: int) -> Any:
    config = {
        "name": "listeners",
        "value": f"PLAINTEXT://h:{port}",
        "config_source": 4,
        "synonyms": [{"name": "listeners", "value": f"PLAINTEXT://h:{port}", "source": 4}],
    }
    result = {"resource_type": 4, "resource_name": "1", "error_message": "", "configs": [config]}
    return build(DescribeConfigsResponse, results=[result])


def differing(ours: Any, kafka: Any) -> list[tuple[str, str, str]]:
    return [tuple(each) for each in compare(normalise(ours, OURS), normalise(kafka, KAFKA))]


def test_what_is_each_nodes_own_is_no_difference() -> None:
    assert differing(described(1000), described(2000)) == []
    topics = [
        build(MetadataResponse, topics=[{"name": "t", "topic_id": node.topic_ids["t"]}])
        for node in (OURS, KAFKA)
    ]
    assert differing(*topics) == []


PLACE = "results/4:1/configs/listeners"


@pytest.mark.parametrize(
    ("change", "path", "ours"),
    [
        ({"value": None}, f"{PLACE}/value", "None"),
        ({"config_source": 5}, f"{PLACE}/config_source", "5"),
        ({"read_only": True}, f"{PLACE}/read_only", "True"),
        ({"is_sensitive": True}, f"{PLACE}/is_sensitive", "True"),
        ({"documentation": None}, f"{PLACE}/documentation", "None"),
        ({"synonyms": []}, f"{PLACE}/synonyms/listeners", "absent"),
        ({"name": "other"}, "results/4:1/configs/other", "present"),
    ],
)
def test_an_injected_difference_is_found(change: dict[str, Any], path: str, ours: str) -> None:
    injected = described(1000)
    config = injected.results[0].configs[0]
    for name, value in change.items():
        setattr(config, name, value)
    found = differing(injected, described(2000))
    assert (path, ours) in [each[:2] for each in found]


def test_a_missing_or_doubled_element_is_found() -> None:
    injected = described(1000)
    injected.results.append(deepcopy(injected.results[0]))
    assert [each[0] for each in differing(injected, described(2000))] == ["results/4:1 again 2"]
    assert differing(CLOSED, described(2000)) != []
    assert differing(CLOSED, CLOSED) == []


def test_messages_for_people_differ_in_whether_there_is_one() -> None:
    injected = described(1000)
    for text, count in (("", 0), ("why", 1), (None, 1)):
        injected.results[0].error_message = text
        assert len(differing(injected, described(2000))) == count


def test_a_row_excuses_what_it_names_and_is_reported_when_it_is_not_needed() -> None:
    injected = described(1000)
    injected.results[0].configs[0].config_source = 5
    found = compare(normalise(injected, OURS), normalise(described(2000), KAFKA))
    row = Difference("DescribeConfigs", ("*/config_source",), "because", ours="5", kafka="4")
    rows = DifferenceList([row, Difference("DescribeConfigs", ("*/value",), "not there")])
    assert rows.unexplained("Metadata", "a case", found) == found
    assert len(rows.unused) == 4
    assert rows.unexplained("DescribeConfigs", "a case", found) == []
    assert rows.unused == [
        "DescribeConfigs: */value (not there)",
        "DescribeConfigs: * (not there)",
    ]
    other = Difference("DescribeConfigs", ("*/config_source",), "no", cases=("another",))
    assert DifferenceList([other]).unexplained("DescribeConfigs", "a case", found) == found


def test_every_row_has_a_reason(tmp_path: Path) -> None:
    assert all(row.reason.endswith(".") for row in DifferenceList.load().rows)
    bad = tmp_path / "bad.toml"
    bad.write_text('[[difference]]\napi = "Metadata"\nfields = ["*"]\n')
    with pytest.raises(TypeError):
        DifferenceList.load(bad)
