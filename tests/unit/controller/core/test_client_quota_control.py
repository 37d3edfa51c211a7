"""Client quotas at the controller: set, removed, refused, in snapshots, and found by filters."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.api.p48_describe_client_quotas import (
    DEFAULT,
    EXACT,
    SPECIFIED,
    described_quotas,
)
from moldau.controller.core.result import MAX_RECORDS_PER_REQUEST
from moldau.metadata.image import MetadataImage
from moldau.metadata.image.configs import ClientQuotasImage
from moldau.metadata.quota_entities import QuotaEntity, quota_entity
from moldau.metadata.steps import at_once
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p48_describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    EntityData,
)
from moldau.protocol.messages.p49_alter_client_quotas import (
    AlterClientQuotasRequest,
    EntryData,
    OpData,
)
from moldau.protocol.metadata_records import ClientQuotaRecord
from tests.unit.metadata.builders import CoreDriver, replay

ALICE: QuotaEntity = (("user", "alice"),)
BOTH: QuotaEntity = (("client-id", None), ("user", "alice"))
ADDRESS: QuotaEntity = (("ip", "10.0.0.1"),)


@pytest.fixture
def driver() -> CoreDriver:
    return CoreDriver()


def entry(parts: QuotaEntity, **values: float | None) -> EntryData:
    """One entity's changes; None removes."""
    return EntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in parts],
        ops=[
            OpData(key=key, value=value or 0.0, remove=value is None)
            for key, value in values.items()
        ],
    )


def alter(
    driver: CoreDriver, *entries: EntryData, validate_only: bool = False
) -> list[tuple[int, str]]:
    """The code and the text of every answer."""
    request = AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
    return [(each.error_code, each.error_message or "") for each in driver.ask(request).entries]


def quotas(driver: CoreDriver) -> dict[QuotaEntity, dict[str, float]]:
    found = driver.image.client_quotas.quotas_by_entity
    return {entity: dict(values) for entity, values in found.items()}


def test_quotas_are_set_changed_and_removed(driver: CoreDriver) -> None:
    assert alter(
        driver,
        entry(ALICE, producer_byte_rate=1e6, request_percentage=12.5),
        entry((("user", "alice"), ("client-id", None)), consumer_byte_rate=5),
        entry(ADDRESS, connection_creation_rate=3),
    ) == [(0, ""), (0, ""), (0, "")]
    assert quotas(driver) == {
        ALICE: {"producer_byte_rate": 1e6, "request_percentage": 12.5},
        BOTH: {"consumer_byte_rate": 5},
        ADDRESS: {"connection_creation_rate": 3},
    }
    alter(driver, entry(ALICE, producer_byte_rate=1e6, request_percentage=20))
    assert [record.key for record in driver.appended] == ["request_percentage"]  # type: ignore[attr-defined]
    alter(
        driver, entry(ALICE, producer_byte_rate=None), entry(ADDRESS, connection_creation_rate=None)
    )
    assert quotas(driver) == {ALICE: {"request_percentage": 20}, BOTH: {"consumer_byte_rate": 5}}
    assert alter(driver, entry(ADDRESS, connection_creation_rate=None, never_there=None)) == [
        (0, "")
    ]
    assert not driver.appended


def test_validate_only_says_the_same_and_changes_nothing(driver: CoreDriver) -> None:
    entries = [entry(ALICE, producer_byte_rate=1), entry(ALICE[:0])]
    assert [code for code, _ in alter(driver, *entries, validate_only=True)] == [0, 42]
    assert not quotas(driver)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (entry(()), "names no type"),
        (entry((("group", "g"),), producer_byte_rate=1), "'group' is none of user, client-id, ip"),
        (entry((("user", ""),), producer_byte_rate=1), "name of the user is empty"),
        (entry((("ip", "1.1.1.1"), ("user", "a")), producer_byte_rate=1), "not for both"),
        (entry((("ip", "example"),), connection_creation_rate=1), "'example' is no IP address"),
        (entry(ADDRESS, producer_byte_rate=1), "these are: connection_creation_rate"),
        (entry(ALICE, connection_creation_rate=1), "is no quota of such an entity"),
        (entry(ALICE, producer_byte_rate=0), "must be greater than 0, not 0.0"),
        (entry(ALICE, producer_byte_rate=-1), "must be greater than 0"),
        (entry(ALICE, request_percentage=float("nan")), "must be greater than 0, not nan"),
        (entry(ALICE, producer_byte_rate=1.5), "must be a whole number, not 1.5"),
        (entry(ALICE, producer_byte_rate=1e19), "is too large for LONG"),
        (entry(ADDRESS, connection_creation_rate=2.0**31), "is too large for INT"),
        (entry(ALICE, consumer_byte_rate=1, producer_byte_rate=-1), "must be greater than 0"),
    ],
)
def test_what_cannot_be_a_quota_is_refused_alone(
    driver: CoreDriver, bad: EntryData, words: str
) -> None:
    (code, message), good = alter(driver, bad, entry((("user", "bob"),), producer_byte_rate=7))
    assert code == ErrorCode.INVALID_REQUEST
    assert words in message
    assert good == (0, "")
    assert quotas(driver) == {(("user", "bob"),): {"producer_byte_rate": 7}}


@pytest.mark.parametrize(
    "good",
    [
        entry((("ip", None),), connection_creation_rate=1),
        entry((("ip", "::1"),), connection_creation_rate=2.0**31 - 1),
        entry((("user", None),), producer_byte_rate=1),
        entry((("client-id", "c"),), consumer_byte_rate=2.0**63),
        entry(ALICE, controller_mutation_rate=0.5),
        entry(ALICE, consumer_byte_rate=5 + 1e-7),
        entry(ALICE, consumer_byte_rate=1e-6),
    ],
)
def test_values_up_to_their_limits_are_quotas(driver: CoreDriver, good: EntryData) -> None:
    assert alter(driver, good) == [(0, "")]
    (values,) = quotas(driver).values()
    assert values == {op.key: op.value for op in good.ops}


def test_an_entity_or_a_key_named_twice_is_not_changed_at_all(driver: CoreDriver) -> None:
    twice = entry(ALICE, producer_byte_rate=1)
    twice.ops.append(OpData(key="producer_byte_rate", value=2.0))
    other_order = entry(tuple(reversed(BOTH)), producer_byte_rate=1)
    answers = alter(driver, twice, entry(BOTH, producer_byte_rate=2), other_order)
    assert [code for code, _ in answers] == [42, 42]
    assert "given twice" in answers[0][1]
    assert "more than once" in answers[1][1]
    assert not quotas(driver)


def test_one_request_changes_only_so_many(driver: CoreDriver) -> None:
    some = [
        entry((("user", f"u{index}"),), producer_byte_rate=1)
        for index in range(MAX_RECORDS_PER_REQUEST)
    ]
    more = entry(ALICE, producer_byte_rate=1)
    assert {code for code, _ in alter(driver, *some, more)} == {ErrorCode.POLICY_VIOLATION}
    assert not quotas(driver)
    alter(driver, *some)
    assert len(quotas(driver)) == MAX_RECORDS_PER_REQUEST


NAMES = st.sampled_from([None, "a", "b", "Jürgen \U0001f600"])
ENTITIES = st.one_of(
    st.dictionaries(st.sampled_from(["user", "client-id"]), NAMES, min_size=1),
    st.dictionaries(st.just("ip"), st.sampled_from([None, "::1", "10.0.0.1"]), min_size=1),
).map(lambda parts: quota_entity(parts.items()))
CHANGES = st.lists(
    st.tuples(ENTITIES, st.sampled_from(["k", "l"]), st.none() | st.floats(0.5, 1e9)), max_size=30
)


@given(CHANGES, CHANGES)
def test_replay_deltas_and_snapshots_agree_with_a_dictionary(
    before: list[tuple[QuotaEntity, str, float | None]],
    after: list[tuple[QuotaEntity, str, float | None]],
) -> None:
    expected: dict[QuotaEntity, dict[str, float]] = {}
    image = MetadataImage.EMPTY
    for changes in (before, after):
        records = []
        for entity, key, value in changes:
            parts = expected.setdefault(entity, {})
            if value is None:
                parts.pop(key, None)
            else:
                parts[key] = value
            records.append(record(entity, key, value))
        image = replay(image, records)
    expected = {entity: values for entity, values in expected.items() if values}
    assert {e: dict(v) for e, v in image.client_quotas.quotas_by_entity.items()} == expected
    written = [each for each, _version in image.client_quotas.write()]
    assert replay(MetadataImage.EMPTY, written).client_quotas == image.client_quotas


def record(entity: QuotaEntity, key: str, value: float | None) -> ClientQuotaRecord:
    found = ClientQuotaRecord(key=key, value=value or 0.0, remove=value is None)
    kind = type(found).spec().fields[0].type.element.struct  # type: ignore[attr-defined]
    found.entity = [kind(entity_type=each, entity_name=name) for each, name in reversed(entity)]
    return found


IMAGE = ClientQuotasImage(
    {
        (("user", "a"),): {"producer_byte_rate": 1.0, "request_percentage": 2.0},
        (("user", None),): {"producer_byte_rate": 3.0},
        (("client-id", "c"), ("user", "a")): {"producer_byte_rate": 4.0},
        (("client-id", None), ("user", "a")): {"producer_byte_rate": 5.0},
        (("client-id", "c"),): {"producer_byte_rate": 6.0},
        (("ip", "10.0.0.1"),): {"connection_creation_rate": 7.0},
    }
)


def described(*components: tuple[str, int, str | None], strict: bool = False) -> Any:
    """The first values of what is found, or the error code."""
    request = DescribeClientQuotasRequest(
        components=[
            ComponentData(entity_type=kind, match_type=how, match=match)
            for kind, how, match in components
        ],
        strict=strict,
    )
    response = at_once(described_quotas(IMAGE, request))
    if response.error_code:
        assert response.entries is None
        return ErrorCode.of(response.error_code)
    return sorted(int(each.values[0].value) for each in response.entries or ())


def test_filters() -> None:
    assert described() == [1, 3, 4, 5, 6, 7]
    assert described(strict=True) == []
    assert described(("user", EXACT, "a")) == [1, 4, 5]
    assert described(("user", EXACT, "a"), strict=True) == [1]
    assert described(("user", DEFAULT, None)) == [3]
    assert described(("user", SPECIFIED, None)) == [1, 3, 4, 5]
    assert described(("user", SPECIFIED, None), strict=True) == [1, 3]
    assert described(("user", EXACT, "a"), ("client-id", SPECIFIED, None)) == [4, 5]
    assert described(("client-id", DEFAULT, None), ("user", SPECIFIED, None)) == [5]
    assert described(("client-id", EXACT, "c")) == [4, 6]
    assert described(("client-id", EXACT, "c"), strict=True) == [6]
    assert described(("ip", SPECIFIED, None)) == [7]
    assert described(("ip", EXACT, "10.0.0.2")) == []


@pytest.mark.parametrize(
    ("components", "error"),
    [
        ([("", EXACT, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, "a"), ("user", SPECIFIED, None)], ErrorCode.INVALID_REQUEST),
        ([("group", EXACT, "a")], ErrorCode.UNSUPPORTED_VERSION),
        ([("user", EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([("user", DEFAULT, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", SPECIFIED, "")], ErrorCode.INVALID_REQUEST),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST),
        ([("user", -1, "a")], ErrorCode.INVALID_REQUEST),
        ([("ip", EXACT, "a"), ("user", SPECIFIED, None)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_filters_that_make_no_sense(
    components: list[tuple[str, int, str | None]], error: ErrorCode
) -> None:
    assert described(*components) is error
