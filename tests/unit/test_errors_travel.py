"""Everything that a caller may catch crosses processes whole: pools of workers and Ray send exceptions by pickle."""

import pickle

import pytest
from tests.strategies.plans import Shape, hand_plan
from tests.strategies.world import Fate, Life

from vime_adapters.fleet import FleetFailed
from vime_adapters.orders import NotDone
from vime_adapters.wire import EngineRefused, RouterRefused, Unreachable
from vime_core import Code, PlanRefused, Problem
from vime_core.lifecycle.report import status
from vime_core.units import EngineId

STATUS = status(Life.of(hand_plan(Shape("m")), {"m-0.0": Fate(unborn=True)}).start().run().machine, 20.0)


@pytest.mark.parametrize(
    "error",
    [
        PlanRefused((Problem(Code.VALUE, "a", "b", "c"), Problem(Code.NO_MODEL, "d", "e", "f", "g"))),
        FleetFailed(STATUS),
        NotDone("sleep", {EngineId("m-0"): "is failed"}, STATUS),
        EngineRefused("http://a:1", "/v1/models", 500, "oh"),
        RouterRefused("http://a:1", "/workers", None, "oh"),
        Unreachable("http://a:1", "/health", "refused", sent=False),
    ],
    ids=lambda error: type(error).__name__,
)
def test_it_is_the_same_on_the_other_side(error):
    """Kind, text and everything that it carries."""
    other = pickle.loads(pickle.dumps(error))
    assert type(other) is type(error)
    assert str(other) == str(error)
    assert other.__dict__ == error.__dict__
