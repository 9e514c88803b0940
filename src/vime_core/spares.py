"""Another port for an engine whose planned one was stolen.

A port that is free when a plan is made may be taken when a process is started on it, most of all when it is started
again. Every host of a plan therefore has a run of spare ports (`vime_core.ports.spares`), leased with the plan. What
takes one is the same engine with one port moved: every argument and variable that told the old port tells the new one.

Not every port can be moved. A port that others were told before they started is fixed: that of an engine whose url is
in the command line of others that are not replaced for it, and those in a configuration that the user wrote.
"""

from collections.abc import Mapping

from attrs import evolve, frozen

from vime_core.cluster import Interval
from vime_core.plan import Arg, Engine, EnvVar, PortUse, Process, Reason, Source
from vime_core.units import NodeName, ProcessId, TcpPort

_FLAGS: Mapping[str, str] = {"http": "--port", "master": "--master-port", "dp_rpc": "--data-parallel-rpc-port"}
_VARIABLES: Mapping[str, str] = {"nixl": "VLLM_NIXL_SIDE_CHANNEL_PORT"}
_EVERYWHERE = ("master", "dp_rpc")
"""Ports of one process that all ranks of its engine are told."""


@frozen
class Spares:
    """The spare ports of every host that has one, and how many are used up. A value: taking gives another one."""

    runs: Mapping[NodeName, Interval]

    def take(self, node: NodeName, count: int) -> "tuple[Interval, Spares] | None":
        """Return ``count`` ports of a host and what is left, or None when there are not so many."""
        run = self.runs.get(node)
        if run is None or run.count < count:
            return None
        left = {**self.runs, node: Interval(TcpPort(run.start + count), run.count - count)}
        if run.count == count:
            del left[node]
        return Interval(run.start, count), Spares(left)


def movable(process: Process, name: str, *, fixed_url: bool) -> PortUse | None:
    """Return the port run of that name if it can be moved; with ``fixed_url`` others know the engine by its url."""
    if (name not in _FLAGS and name not in _VARIABLES) or (fixed_url and name == "http"):
        return None
    return next((use for use in process.ports if use.name == name), None)


def moved(engine: Engine, process: ProcessId, use: PortUse, to: Interval) -> Engine:
    """Return the engine with one port run of one process moved; ``to`` is as long as the run that ``use`` says."""
    reason = Reason(Source.GUARD, f"instead of {use.interval.start}, which was taken when it was needed")
    ranks = tuple(
        _moved(rank, use, to, reason, own=rank.id == process) if rank.id == process or use.name in _EVERYWHERE else rank
        for rank in engine.processes
    )
    return evolve(engine, processes=ranks, url=ranks[0].url or engine.url)


def _moved(rank: Process, use: PortUse, to: Interval, reason: Reason, *, own: bool) -> Process:
    old, new = str(use.interval.start), str(to.start)
    flag, variable = _FLAGS.get(use.name), _VARIABLES.get(use.name)
    args = tuple(Arg((flag, new), reason) if flag and arg.tokens == (flag, old) else arg for arg in rank.args)
    env = tuple(EnvVar(e.name, new, reason) if e.name == variable and e.value == old else e for e in rank.env)
    ports = tuple(PortUse(use.name, to, reason) if own and other == use else other for other in rank.ports)
    return evolve(rank, args=args, env=env, ports=ports)
