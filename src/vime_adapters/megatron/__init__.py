"""The reference trainer's side: what Megatron leaves on a disk."""
