"""What a policy learns from: advantages of answers to one prompt, and the clipped objective of PPO and GRPO."""

import torch
from attrs import frozen


@frozen
class Clip:
    """How far one step may take a token's probability, as a ratio to the one it was sampled with, down and up."""

    low: float = 0.2
    high: float = 0.2


def group_advantages(rewards: torch.Tensor, group: int) -> torch.Tensor:
    """Return each answer's advantage over the others to its prompt: (reward - mean) / (deviation + 1e-6).

    ``rewards`` has those of a prompt beside each other, ``group`` of them. Answers that are all alike teach nothing.
    Raises ValueError when they do not divide into groups.
    """
    if rewards.numel() % group:
        raise ValueError(f"{rewards.numel()} rewards do not divide into groups of {group}")
    grouped = rewards.float().reshape(-1, group)
    spread = grouped.std(1, unbiased=False, keepdim=True)
    return ((grouped - grouped.mean(1, keepdim=True)) / (spread + 1e-6)).reshape(-1)


def policy_loss(
    log_probs: torch.Tensor, sampled: torch.Tensor, advantages: torch.Tensor, clip: Clip
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each token's loss, and whether it was clipped; all shapes (answers, tokens), ``advantages`` one an answer.

    ``sampled`` are the log-probabilities with which the tokens were sampled. The smaller of the two objectives counts,
    so a step gains nothing by going further than the clip (Schulman et al. 2017, equation 7).
    """
    ratio = (log_probs - sampled).exp()
    advantage = advantages.unsqueeze(-1)
    free = ratio * advantage
    bound = ratio.clamp(1.0 - clip.low, 1.0 + clip.high) * advantage
    return -torch.minimum(free, bound), bound < free
