"""Laws of ports: intervals that nobody else holds, each of them told to whoever needs it."""

from hypothesis import assume, given
from hypothesis import strategies as st
from tests.oracles.slots import hosts_of
from tests.strategies.clusters import cluster_facts
from tests.strategies.effort import effort
from tests.strategies.requests import Made, Story, made, stories

from vime_core import Code, Interval
from vime_core.check.engines import Told, engine_laws
from vime_core.ports import spares
from vime_core.spares import movable, moved

RAY = {6379, 8265, *range(10001, 20000)}
"""Ports that Ray takes by default on every host."""


def intervals(made: Made) -> list[tuple[str, str, Interval]]:
    """Return address, owner and ports of everything that a plan hands out."""
    plan = made.plan
    found = [(p.address, f"{p.id}.{u.name}", u.interval) for e in plan.engines for p in e.processes for u in p.ports]
    found += [(r.address, f"{r.id}.{u.name}", u.interval) for r in plan.routers for u in r.ports]
    return found + [(s.address, f"weights.{s.model}", Interval(s.port)) for s in plan.weight_sync]


def numbers(interval: Interval) -> range:
    """Return the ports of an interval."""
    return range(interval.start, interval.start + interval.count)


def mentioned(words: tuple[str, ...], flag: str) -> list[int]:
    """Return the numbers that follow ``flag``."""
    return [int(words[i + 1]) for i, word in enumerate(words) if word == flag]


class TestDisjointPorts:
    """No port of a host is handed out twice, to engines, routers or weight groups."""

    @given(made())
    def test_law(self, made: Made):
        """Collect every single port by host."""
        seen = [(address, port) for address, _, interval in intervals(made) for port in numbers(interval)]
        assert len(set(seen)) == len(seen)


class TestBelowTheFloor:
    """Every port is at least 1024 and below its host's ephemeral floor, where no outgoing connection can be."""

    @given(made())
    def test_law(self, made: Made):
        """Look the floor of each host up in the facts."""
        floors = {h["address"]: h.get("ephemeral_floor", 32768) for h in hosts_of(made.story.facts)}
        for address, _, interval in intervals(made):
            assert all(1024 <= port < floors[address] for port in numbers(interval))


class TestOffReservedPorts:
    """No port is one that the facts call reserved or busy."""

    @given(made())
    def test_law(self, made: Made):
        """Collect the closed ports of each host one by one."""
        closed = {
            (host["address"], port)
            for host in hosts_of(made.story.facts)
            for start, count in [*host.get("reserved_ports", ()), *((p, 1) for p in host.get("busy_ports", ()))]
            for port in range(start, start + count)
        }
        assert not closed & {(a, port) for a, _, interval in intervals(made) for port in numbers(interval)}


class TestClearOfRay:
    """No port is one that Ray takes by default, unless the user chose it."""

    @given(made())
    def test_law(self, made: Made):
        """Leave the user's own choices out."""
        args = made.story.args
        chosen = {args.get("vllm_router_port"), args.get("router_prometheus_port")}
        assert not RAY & ({port for _, _, interval in intervals(made) for port in numbers(interval)} - chosen)


class TestEveryPortIsTold:
    """Every interval that a plan hands out begins at a port that its owner's command line or environment mentions."""

    @given(made())
    def test_law(self, made: Made):
        """Search the owner's own words."""
        for process in (p for e in made.plan.engines for p in e.processes):
            words = {*process.argv, *(entry.value for entry in process.env)}
            assert all(str(use.interval.start) in words for use in process.ports)
        for router in made.plan.routers:
            assert all(str(use.interval.start) in router.argv for use in router.ports)


class TestEveryToldPortIsPlanned:
    """Every port that a command line or environment mentions is the start of an interval on the host it means."""

    ENV = ("VLLM_PORT", "VLLM_NIXL_SIDE_CHANNEL_PORT", "VLLM_MOONCAKE_BOOTSTRAP_PORT")

    @given(made())
    def test_law(self, made: Made):
        """Collect what is mentioned by flag and by variable."""
        planned = {(address, interval.start) for address, _, interval in intervals(made)}
        for engine in made.plan.engines:
            head = engine.processes[0].address
            for process in engine.processes:
                env = {entry.name: entry.value for entry in process.env}
                own = [*mentioned(process.argv, "--port"), *(int(env[name]) for name in self.ENV if name in env)]
                assert {(process.address, port) for port in own} <= planned
                for flag in ("--master-port", "--data-parallel-rpc-port"):
                    assert {(head, port) for port in mentioned(process.argv, flag)} <= planned
        for router in made.plan.routers:
            own = [*mentioned(router.argv, "--port"), *mentioned(router.argv, "--prometheus-port")]
            assert {(router.address, port) for port in own} <= planned


class TestSpans:
    """A service that derives ports from a base holds all of them: NIXL one for every data-parallel rank."""

    @given(made())
    def test_law(self, made: Made):
        """Compare the counts of every interval with what its user needs."""
        for engine in made.plan.engines:
            counts = {use.name: use.interval.count for p in engine.processes for use in p.ports}
            assert counts.get("nixl", engine.dp) == engine.dp
            assert counts["scan"] > 1
            assert {counts[n] for n in counts if n not in {"nixl", "scan"}} == {1}
            assert all("scan" in {use.name for use in p.ports} for p in engine.processes)


class TestScansAreApart:
    """Every process looks for further ports in a run of its own."""

    @given(made())
    def test_law(self, made: Made):
        """Compare VLLM_PORT of all processes of a host."""
        bases = [
            (p.address, entry.value)
            for e in made.plan.engines
            for p in e.processes
            for entry in p.env
            if entry.name == "VLLM_PORT"
        ]
        assert len(set(bases)) == len(bases) == sum(len(e.processes) for e in made.plan.engines)


class TestNoPortsLeft:
    """Where a host has too few ports below its floor the plan is refused with the host's name; none is made up."""

    @given(stories(), st.integers(1024, 1300))
    def test_law(self, story: Story, floor: int):
        """Lower every floor until little or nothing is left."""
        assume("vllm_router_port" not in story.args and "router_prometheus_port" not in story.args)
        low = story.copy()
        for host in hosts_of(low.facts):
            host["ephemeral_floor"] = floor
        problems = [p for p in low.problems() if p.code is Code.NO_PORTS]
        names = {host["name"] for host in hosts_of(low.facts)}
        assert all(p.found.removeprefix("none on ") in names for p in problems)
        if floor < 1024 + 32:
            assert problems or story.problems()


class TestGivenPorts:
    """A port that the user gives the router is used as given, or refused where its host does not have it to give."""

    @effort(2)
    @given(made(), st.integers(1, 66000), st.sampled_from(["vllm_router_port", "router_prometheus_port"]))
    def test_law(self, made: Made, port: int, name: str):
        """Give any port; the host is the one where the router was before."""
        assume(port not in {made.story.args.get("vllm_router_port"), made.story.args.get("router_prometheus_port")})
        router = made.plan.routers[0]
        host = next(h for h in hosts_of(made.story.facts) if h["address"] == router.address)
        closed = [*host.get("reserved_ports", ()), *((p, 1) for p in host.get("busy_ports", ()))]
        fine = 1024 <= port < host.get("ephemeral_floor", 32768)
        fine = fine and not any(start <= port < start + count for start, count in closed)
        story = made.story.given(**{name: port})
        assert [(p.code, p.where) for p in story.problems()] == ([] if fine else [(Code.PORT_TAKEN, name)])
        if fine:
            use = {u.name: u.interval.start for u in story.plan().routers[0].ports}
            assert use["http" if name == "vllm_router_port" else "metrics"] == port


class TestAutomaticPortsGiveWay:
    """A port that the user gives is theirs even where the planner would have handed that one out itself."""

    @given(made(facts=cluster_facts((4,))), st.data())
    def test_law(self, made: Made, data: st.DataObject):
        """Give the router a port that an engine or the router itself had before."""
        plan = made.plan
        taken = sorted({interval.start for _, _, interval in intervals(made)})
        assume(not {"vllm_router_port", "router_prometheus_port"} & made.story.args.keys())
        port = data.draw(st.sampled_from(taken))
        for name, use in (("vllm_router_port", "http"), ("router_prometheus_port", "metrics")):
            moved = made.story.given(**{name: port}).plan()
            assert {u.name: u.interval.start for u in moved.routers[0].ports}[use] == port
            assert [e.gpus_per_engine for e in moved.engines] == [e.gpus_per_engine for e in plan.engines]


class TestSparePorts:
    """Every host of an engine has spare ports that nobody was given, unless no port is left on it at all."""

    @given(made())
    def test_law(self, made: Made):
        """Take the spares of each host for one more thing that was handed out, and hold the laws of ports."""
        plan, floors = made.plan, {h["name"]: h for h in hosts_of(made.story.facts)}
        nodes = {n.name: n for n in plan.cluster.nodes}
        runs = spares(plan).runs
        given = {(address, port) for address, _, interval in intervals(made) for port in numbers(interval)}
        for name, run in runs.items():
            closed = [*nodes[name].reserved_ports, *map(Interval, nodes[name].busy_ports)]
            assert not {(nodes[name].address, port) for port in numbers(run)} & given
            assert not any(run.meets(interval) for interval in closed)
            assert 1024 <= run.start < run.end <= nodes[name].ephemeral_floor
            assert not RAY & set(numbers(run))
            assert name in floors
        assert set(runs) <= {p.node for e in plan.engines for p in e.processes}


class TestMovedPorts:
    """An engine whose port is moved keeps every law of engines, and nothing but that port is another."""

    @given(made(), st.data())
    def test_law(self, made: Made, data: st.DataObject):
        """Move any port that can be moved, then check the engine and count what changed."""
        every = [
            (e, p, use)
            for e in made.plan.engines
            for p in e.processes
            for u in p.ports
            if (use := movable(p, u.name, fixed_url=False))
        ]
        assume(every)
        engine, process, use = data.draw(st.sampled_from(every))
        other = moved(engine, process.id, use, Interval(1100, use.interval.count))
        assert list(engine_laws(other, [Told.of(p) for p in other.processes])) == []
        assert [p.id for p in other.processes] == [p.id for p in engine.processes]
        for before, after in zip(engine.processes, other.processes, strict=True):
            moves = str(use.interval.start), "1100"
            words = [*zip(before.argv, after.argv, strict=True)]
            words += [
                (f"{old.name}={old.value}", f"{new.name}={new.value}")
                for old, new in zip(before.env, after.env, strict=True)
                if (old.name, old.value, new.value) != (new.name, *moves)
            ]
            assert all(old == new or (old, new) == moves for old, new in words)
            assert (before.ports == after.ports) == (before.id != process.id)
