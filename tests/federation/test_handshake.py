"""The statements of the sites, and the refusal of any difference by name."""

from dataclasses import replace
from typing import Any

import pytest
from fake_site import SPEC

from fedpref.adapter_state import AdapterSpec
from fedpref.errors import AdapterError, FedPrefErrors, HandshakeError
from fedpref.federation import wire
from fedpref.federation.handshake import SiteHandshake, agree


def statement(site: str = "site-a", **changes: Any) -> SiteHandshake:
    base = SiteHandshake(
        site=site,
        partition=0,
        partitions=2,
        federation="demo",
        config="c" * 64,
        weights="a" * 64,
        tokenizer="b" * 64,
        prompt="d" * 64,
        ontology="e" * 64,
        spec=SPEC,
        initial="f" * 64,
        versions={"fedpref": "0.1.0", "torch": "2.13.0"},
        pairs=7,
        dev_reports=12,
        synthetic=True,
        holds=("f" * 64,),
    )
    return replace(base, **changes)


def test_a_statement_comes_back_from_its_record() -> None:
    for given in (statement(), statement(dev_reports=None, holds=(), pairs=0)):
        assert SiteHandshake.from_record(given.to_record()) == given


def test_a_withheld_count_is_not_in_the_record() -> None:
    assert "dev-reports" not in statement(dev_reports=None).to_record()


def test_sites_that_state_the_same_agree() -> None:
    found = agree([statement("site-b", pairs=3), statement("site-a")], {"config": "c" * 64})
    assert found.sites == {"site-a": 7, "site-b": 3}
    assert list(found.sites) == ["site-a", "site-b"]
    assert found.spec == SPEC
    assert found.common["weights"] == "a" * 64


OTHER_SPEC = AdapterSpec(4, 4.0, False, SPEC.targets, SPEC.keys, ((4, 6), (4, 4)))


@pytest.mark.parametrize(
    ("field", "change", "values"),
    [
        ("federation", {"federation": "other"}, ("other", "demo")),
        ("config", {"config": "0" * 64}, ("0" * 12, "c" * 12)),
        ("weights", {"weights": "0" * 64}, ("0" * 12, "a" * 12)),
        ("tokenizer", {"tokenizer": "0" * 64}, ("0" * 12, "b" * 12)),
        ("prompt", {"prompt": "0" * 64}, ("0" * 12, "d" * 12)),
        ("ontology", {"ontology": "0" * 64}, ("0" * 12, "e" * 12)),
        ("initial", {"initial": "0" * 64}, ("0" * 12, "f" * 12)),
        ("adapter", {"spec": OTHER_SPEC}, (OTHER_SPEC.digest[:12], SPEC.digest[:12])),
        (
            "version of torch",
            {"versions": {"fedpref": "0.1.0", "torch": "2.12.0"}},
            ("2.12.0", "2.13.0"),
        ),
        ("version of torch", {"versions": {"fedpref": "0.1.0"}}, ("none", "2.13.0")),
    ],
)
def test_a_difference_names_field_sites_and_values(field: str, change: Any, values: Any) -> None:
    with pytest.raises(HandshakeError) as caught:
        agree([statement("site-a"), statement("site-b", **change)], {})
    message = str(caught.value)
    assert f"site site-b, key {field}: {field} differs: {values[0]} here" in message
    assert f"{values[1]} at site site-a" in message


def test_the_coordinator_is_compared_where_it_knows_the_value() -> None:
    with pytest.raises(FedPrefErrors) as caught:
        agree([statement("site-a"), statement("site-b")], {"prompt": "0" * 64})
    assert [e.site for e in caught.value.errors] == ["site-a", "site-b"]
    assert "000000000000 at the coordinator" in str(caught.value)
    with pytest.raises(HandshakeError, match=r"version of fedpref differs: 0.1.0 here, 9.9"):
        agree([statement()], {"version:fedpref": "9.9"})


def test_all_differences_are_reported_at_once() -> None:
    with pytest.raises(FedPrefErrors) as caught:
        agree(
            [statement("a"), statement("b", weights="0" * 64), statement("c", prompt="1" * 64)], {}
        )
    assert [(e.site, e.key) for e in caught.value.errors] == [("b", "weights"), ("c", "prompt")]


def test_one_name_for_two_sites_is_refused() -> None:
    with pytest.raises(HandshakeError, match=r"partitions 0 and 1\) are both 'site-a'"):
        agree([statement(partition=0), statement(partition=1)], {})


def test_only_lora_factors_may_travel() -> None:
    spec = AdapterSpec(2, 4.0, False, ("q_proj",), ("lm_head.weight",), ((4, 2),))
    with pytest.raises(AdapterError, match=r"key lm_head.weight.*no LoRA factor"):
        agree([statement(spec=spec)], {})


@pytest.mark.parametrize(
    "change",
    [
        {wire.SITE: "../../etc"},
        {wire.SITE: ""},
        {wire.SITE: "a" * 65},
        {wire.SITE: 3},
        {"pairs": -1},
        {"pairs": 1.5},
        {"adapter-spec": "{"},
        {"adapter-spec": "{}"},
        {"versions": "torch=2"},
        {wire.HOLDS: [1, 2]},
    ],
)
def test_a_malformed_statement_is_refused(change: dict[str, Any]) -> None:
    record = statement().to_record()
    for name, value in change.items():
        record[name] = value
    with pytest.raises(HandshakeError):
        SiteHandshake.from_record(record)


def test_a_missing_field_is_refused() -> None:
    for name in ("site", "weights", "pairs", "adapter-spec", "initial"):
        record = statement().to_record()
        del record[name]
        with pytest.raises(HandshakeError, match="malformed"):
            SiteHandshake.from_record(record)
