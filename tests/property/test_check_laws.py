"""Laws of the checker: a plan with one thing wrong does not pass, whichever thing it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies.effort import effort
from tests.strategies.mutations_fleet import MUTATIONS
from tests.strategies.requests import Made, made

from vime_core import Code, problems


class TestSlipsAreFound:
    """The checker finds every slip in a plan that was sound: in ranks, GPUs, flags, ports, urls, weights and order."""

    @pytest.mark.parametrize("name", sorted(MUTATIONS))
    @effort(0.5)
    @given(made(), st.data())
    def test_law(self, name: str, made: Made, data: st.DataObject):
        """Make one slip and ask for the broken laws."""
        broken = MUTATIONS[name](data.draw, made.plan)
        if broken is None or broken == made.plan:
            return
        found = problems(broken)
        assert found
        assert {p.code for p in found} == {Code.BROKEN_LAW}
