"""Turns trainer arguments into an immutable plan for vLLM rollout fleets, without side effects."""
