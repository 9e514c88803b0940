"""Distinct types for the numbers and names that must never be mixed up.

A rank does one job per type: the position of an engine in the fleet, of a process in its engine, of a GPU in a
weight-transfer group are different things even when they happen to be equal integers.
"""

from typing import NewType

NodeName = NewType("NodeName", str)
"""Name of a host, as the cluster facts give it."""

GpuId = NewType("GpuId", str)
"""Physical id of a GPU on its host, as CUDA_VISIBLE_DEVICES spells it: a number or a UUID."""

EngineId = NewType("EngineId", str)
"""Name of one vLLM engine: ``<model>-<engine index>``."""

ProcessId = NewType("ProcessId", str)
"""Name of one operating-system process of the plan: ``<engine id>.<node rank>`` or ``router-<model>``."""

EngineIndex = NewType("EngineIndex", int)
"""Position of an engine in the fleet, 0-based, over all models and groups."""

NodeRank = NewType("NodeRank", int)
"""Position of a process inside its engine: 0 is the head, every other rank is headless."""

WeightRank = NewType("WeightRank", int)
"""Rank in a weight-transfer group; 0 is the trainer's sender."""

TrainerRank = NewType("TrainerRank", int)
"""Rank of a trainer process; equal to the position of its slot among the trainer's slots."""

TcpPort = NewType("TcpPort", int)
"""A TCP port number. In this code "port" always means this; a Protocol of the hexagon is called a seam."""
