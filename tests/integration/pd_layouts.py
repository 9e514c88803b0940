"""Prefill and decode in other layouts than one engine of each kind; `make heavy` runs this, a quarter of an hour."""

import pytest
from tests.integration.conftest import serving
from tests.pd.compare import alike
from tests.pd.layouts import args_of, slots_of

pytestmark = [pytest.mark.engine, pytest.mark.timeout(2400)]


@pytest.mark.parametrize("layout", ["2P2D", "TP1-TP2", "DP2-1"])
def test_other_layouts(layout, dense, tmp_path):
    """Two engines of each kind, decode at twice prefill's tensor-parallel size, a prefill engine of two replicas."""
    for running in serving(args_of(layout, dense), slots_of(layout), tmp_path):
        alike(running.fleet, layout, 8, 2)
