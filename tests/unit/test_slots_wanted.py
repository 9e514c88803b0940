"""How many slots a request needs, before there are facts to plan with."""

import pytest

from vime_core import Cluster, PlanRefused, make_plan, slots_wanted
from vime_core.errors import Code

TRAINER = {"hf_checkpoint": "m", "actor_num_nodes": 1, "actor_num_gpus_per_node": 4, "rollout_num_gpus_per_engine": 2}
GROUPS = [
    {"worker_type": "regular", "num_gpus": 2, "num_gpus_per_engine": 1},
    {"worker_type": "placeholder", "num_gpus": 2},
    {"worker_type": "regular", "num_gpus": 4, "num_gpus_per_engine": 4},
]


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        ({**TRAINER, "colocate": True}, 4),
        ({**TRAINER, "colocate": True, "rollout_num_gpus": 8}, 8),
        ({**TRAINER, "rollout_num_gpus": 8}, 12),
        ({**TRAINER, "rollout_num_gpus": 8, "debug_rollout_only": True}, 8),
        ({**TRAINER, "rollout_num_gpus": 8, "debug_train_only": True}, 4),
        (
            {
                "hf_checkpoint": "m",
                "debug_rollout_only": True,
                "rollout_num_gpus": 8,
                "vllm_config": {"vllm": [{"name": "default", "server_groups": GROUPS}]},
            },
            8,
        ),
    ],
)
def test_so_many_and_no_fewer(args, wanted):
    """A cluster of so many slots carries the plan, one with a slot less does not."""
    assert slots_wanted(args) == wanted
    make_plan(args, Cluster.uniform(1, wanted))
    with pytest.raises(PlanRefused) as refused:
        make_plan(args, Cluster.uniform(1, wanted - 1))
    assert {problem.code for problem in refused.value.problems} <= {Code.OVERSUBSCRIBED, Code.TRAINER_TOO_LARGE}


def test_what_cannot_be_understood_is_refused():
    """It raises as the planner does."""
    with pytest.raises(PlanRefused):
        slots_wanted({"hf_checkpoint": "m", "rollout_num_gpus": "many"})
