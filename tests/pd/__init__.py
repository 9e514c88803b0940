"""Prefill/decode fleets of real engines on CPU: the same tokens as one engine, blocks that move, and failures."""
