"""Advantages and the clipped objective, by hand."""

import pytest
import torch

from vime_adapters.megatron.losses import Clip, group_advantages, policy_loss


def test_advantages_are_within_a_group():
    """The best of a group is above zero by as much as the others are below; equal ones teach nothing."""
    found = group_advantages(torch.tensor([1.0, 0.0, 0.0, 1.0, 5.0, 5.0, 5.0, 5.0]), 4)
    assert found.tolist() == pytest.approx([1.0, -1.0, -1.0, 1.0, 0.0, 0.0, 0.0, 0.0], abs=1e-5)
    with pytest.raises(ValueError, match="8 rewards do not divide into groups of 3"):
        group_advantages(torch.zeros(8), 3)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.0, 2.0, -2.0, False),
        (1.1, 2.0, -2.2, False),
        (1.5, 2.0, -2.6, True),  # no more to be gained above 1 + 0.3
        (0.5, 2.0, -1.0, False),  # further down than allowed, and the way back is free
        (0.5, -2.0, 1.6, True),  # no more to be gained below 1 - 0.2
        (1.5, -2.0, 3.0, False),
    ],
)
def test_a_step_gains_nothing_beyond_the_clip(ratio, advantage, loss, clipped):
    """Up by 0.3, down by 0.2."""
    each, bound = policy_loss(
        torch.tensor([[ratio]]).log(), torch.zeros(1, 1), torch.tensor([advantage]), Clip(low=0.2, high=0.3)
    )
    assert each.item() == pytest.approx(loss, abs=1e-5)
    assert bound.item() is clipped
