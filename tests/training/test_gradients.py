"""Each gradient rule against central differences in float64."""

from __future__ import annotations

import pytest

from ort_gpu_ep.training.gradient import RULES
from tests.training.cases import CASES
from tests.training.numeric import Case, check
from tests.training.random_cases import RANDOM


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_gradient(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", RANDOM, ids=lambda c: c.id)
def test_gradient_of_a_random_form(case: Case) -> None:
    check(case)


def test_every_rule_has_a_case() -> None:
    assert {op for domain, op in RULES if not domain} - {c.op for c in CASES} - {"CastLike", "Upsample"} == set()
