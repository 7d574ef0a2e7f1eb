"""Each gradient rule against central differences in float64."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ort_gpu_ep.training.gradient import RULES
from tests.training.cases import CASES
from tests.training.numeric import Case, check
from tests.training.random_cases import RANDOM
from tests.training.record_onnx_ad import RECORDED


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_gradient(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", [c for c in CASES if len(c.tracked()) > 1], ids=lambda c: c.id)
def test_gradient_of_one_input_alone(case: Case) -> None:
    """The others are frozen weights, or data."""
    for name in case.tracked():
        check(replace(case, fixed=(*case.fixed, *(other for other in case.tracked() if other != name))))


@pytest.mark.parametrize("case", RANDOM, ids=lambda c: c.id)
def test_gradient_of_a_random_form(case: Case) -> None:
    check(case)


def test_where_onnx_ad_differs_differences_say_that_it_is_wrong() -> None:
    """As recorded by record_onnx_ad.py; ours agree with it in all others that it has rules for."""
    record, cases = json.loads(RECORDED.read_text()), {c.id: c for c in (*CASES, *RANDOM)}
    assert len(record["agree"]) > 200
    for name in record["differ"]:
        check(cases[name])


def test_every_rule_has_a_case() -> None:
    assert {op for domain, op in RULES if not domain} - {c.op for c in CASES} - {"CastLike", "Upsample"} == set()
