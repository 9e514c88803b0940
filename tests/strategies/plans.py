"""Small launch plans made by hand: n engines of m ranks, with a router of either kind or none, in any number of models.

They hold what the lifecycle reads (names, roles, urls, start order) and are plain where it does not look, so that the
tests of the lifecycle do not depend on the planner.
"""

from attrs import frozen
from hypothesis import strategies as st

from vime_core.cluster import Cluster
from vime_core.plan import Arg, Engine, EnvVar, LaunchPlan, Process, Reason, Role, Router, Source
from vime_core.units import EngineId, EngineIndex, GpuId, NodeName, NodeRank, ProcessId

WHY = Reason(Source.LAYOUT, "a plan made by hand")


@frozen
class Shape:
    """One model: its engines, the ranks of each, and its router: "regular", "pd", "static" or None.

    "static" is a regular router that is started with its members on the command line, after them.
    """

    model: str = "m"
    engines: int = 1
    nnodes: int = 1
    router: str | None = "regular"


def hand_plan(*shapes: Shape, edges: tuple[tuple[str, str], ...] = ()) -> LaunchPlan:
    """Return the plan of some models; ``edges`` are added to the start order."""
    engines: list[Engine] = []
    routers: list[Router] = []
    order: list[tuple[ProcessId, ProcessId]] = []
    for shape in shapes:
        mine = [_engine(shape, k, len(engines) + k) for k in range(shape.engines)]
        engines += mine
        if shape.router is not None:
            router = _router(shape, mine)
            routers.append(router)
            heads = [engine.processes[0].id for engine in mine]
            waits = shape.router in {"pd", "static"}
            order += [(head, router.id) if waits else (router.id, head) for head in heads]
    order += [(ProcessId(before), ProcessId(after)) for before, after in edges]
    cluster = Cluster.uniform(1, 8)
    return LaunchPlan("0.32.0", "0.1.17", cluster, 0, False, 512, tuple(engines), tuple(routers), (), tuple(order), ())


def _engine(shape: Shape, k: int, index: int) -> Engine:
    role = Role.REGULAR
    if shape.router == "pd":
        role = Role.PREFILL if k < (shape.engines + 1) // 2 else Role.DECODE
    name = EngineId(f"{shape.model}-{k}")
    processes = tuple(
        Process(
            ProcessId(f"{name}.{rank}"),
            NodeRank(rank),
            NodeName(f"node-{rank}"),
            f"10.0.0.{rank + 1}",
            (GpuId("0"),),
            (Arg(("vllm", "serve", shape.model), WHY), Arg(("--node-rank", str(rank)), WHY)),
            (EnvVar("CUDA_VISIBLE_DEVICES", "0", WHY), EnvVar("PYTORCH_CUDA_ALLOC_CONF", None, WHY)),
            (),
        )
        for rank in range(shape.nnodes)
    )
    url = f"http://10.0.0.1:{8000 + index}"
    size = shape.nnodes
    return Engine(
        name, shape.model, 0, EngineIndex(index), role, size, size, size, 1, 1, 1, 1, 1234 + index, url, processes
    )


def _router(shape: Shape, engines: list[Engine]) -> Router:
    pd = shape.router == "pd"
    return Router(
        ProcessId(f"router-{shape.model}"),
        shape.model,
        pd,
        NodeName("node-0"),
        "10.0.0.1",
        f"http://10.0.0.1:{7000 + engines[0].index if engines else 7999}",
        () if pd else tuple(engine.url for engine in engines),
        tuple((engine.url, None) for engine in engines if engine.role is Role.PREFILL),
        tuple(engine.url for engine in engines if engine.role is Role.DECODE),
        (Arg(("vllm-router",), WHY),),
        (),
    )


def _shapes(model: str) -> st.SearchStrategy[Shape]:
    plain = st.builds(
        Shape, st.just(model), st.integers(0, 3), st.integers(1, 3), st.sampled_from(["regular", "static", None])
    )
    return plain | st.builds(Shape, st.just(model), st.integers(2, 3), st.integers(1, 2), st.just("pd"))


_FIRST, _SECOND = _shapes("a"), _shapes("b")


@st.composite
def hand_plans(draw: st.DrawFn) -> LaunchPlan:
    """Return plans of up to two models, each of up to three engines of up to three ranks with any kind of router.

    Now and then an engine of the second model waits for an engine of the first.
    """
    first = draw(_FIRST)
    if draw(st.booleans()):
        return hand_plan(first)
    second = draw(_SECOND)
    linked = first.engines and second.engines and draw(st.booleans())
    return hand_plan(first, second, edges=(("a-0.0", "b-0.0"),) if linked else ())
