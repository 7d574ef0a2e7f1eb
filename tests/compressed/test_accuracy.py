"""What compression costs in accuracy, on real images: the nets and limits of benchmarks/digits.py."""

from __future__ import annotations

import pytest

from benchmarks.digits import LIMITS, NETS, measured


@pytest.mark.parametrize("net", [pytest.param(net, marks=pytest.mark.nightly if net == "LSTM" else []) for net in NETS])
def test_digits_are_still_recognised(net: str) -> None:
    for method, dense, found in measured(net, list(LIMITS)):
        assert dense > 97
        assert dense - found <= LIMITS[method], f"{method}: {found:.2f} % instead of {dense:.2f} %"
