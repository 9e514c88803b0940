"""What the explanation of a plan says, and which questions it refuses."""

import pytest
from attrs import evolve
from tests.cases.ask import ALONE, SHARED, grouped, plan, processes

from vime_core import Code, LaunchPlan, PlanRefused
from vime_core.explain import About, Line, Question, explain
from vime_core.plan import Note, Source, Transport

APART = plan({"hf_checkpoint": "m", "rollout_num_gpus": 16, "rollout_num_gpus_per_engine": 8, "seed": 7}, "3x8")
PD = plan({**SHARED, "rollout_num_gpus_per_engine": 4, "prefill_num_servers": 1})
MIXED = plan({**SHARED, "actor_num_gpus_per_node": 4, "rollout_num_gpus": 8, "rollout_num_gpus_per_engine": 2})
FREE = plan({**ALONE, "rollout_num_gpus": 2, "vllm_enforce_eager": True})


def said(found: LaunchPlan, **asked: object) -> list[tuple[str, str, str]]:
    """Return place, thing and value of the lines that answer a question."""
    return [(line.where, line.what, line.value) for line in explain(found, Question(**asked))]


def one(found: LaunchPlan, what: str, **asked: object) -> Line:
    """Return the only line about ``what`` in an answer."""
    (line,) = (line for line in explain(found, Question(**asked)) if line.what == what)
    return line


def refusal(found: LaunchPlan, **asked: object) -> tuple[str, str, str]:
    """Return place, found and hint of the refusal that a question gets."""
    with pytest.raises(PlanRefused) as refused:
        explain(found, Question(**asked))
    (problem,) = refused.value.problems
    assert problem.code is Code.UNKNOWN_KEY
    return problem.where, problem.found, problem.hint


def test_a_flag_with_its_reason() -> None:
    """A line about a flag says where it is, its value, who wants it and why, as the planner left it."""
    arg = next(a for a in processes(APART)[1].args if a.tokens[0] == "--seed")
    line = one(APART, "--seed", engine="default-1")
    assert line == Line("default-1.0", About.FLAG, "--seed", "8", Source.TRAINER, arg.reason.text)
    assert said(APART, flag="seed") == [("default-0.0", "--seed", "7"), ("default-1.0", "--seed", "8")]


@pytest.mark.parametrize("name", ["enforce_eager", "--enforce-eager", "vllm_enforce_eager", "no-enforce-eager"])
def test_a_flag_by_any_of_its_spellings(name: str) -> None:
    """A flag is found under the release's, the trainer's and the negated spelling."""
    assert said(FREE, flag=name, engine="default-0") == [("default-0.0", "--enforce-eager", "")]


def test_the_flags_of_a_router() -> None:
    """Each flag of a router's command line is a line of its own, also where two share a reason."""
    found = said(APART, process="router-default")
    assert ("router-default", "--host", "10.0.0.1") in found
    assert ("router-default", "--port", "20000") in found
    assert said(APART, flag="router_prometheus_port") == [("router-default", "--prometheus-port", "20001")]
    assert said(APART, flag="vllm-router") == [("router-default", "vllm-router", "")]


def test_entries_set_and_removed() -> None:
    """An entry that is removed says so instead of a value."""
    assert said(APART, env="RANK", process="default-0.0") == [("default-0.0", "RANK", "(removed)")]
    assert said(APART, env="VLLM_HOST_IP", engine="default-1") == [("default-1.0", "VLLM_HOST_IP", "10.0.0.3")]


def test_ports() -> None:
    """A port is asked for by the name of its use; an interval shows both ends; the weight group's is a port too."""
    assert said(APART, port="http", engine="default-1") == [("default-1.0", "http", "20000")]
    assert said(APART, port="scan", engine="default-1") == [("default-1.0", "scan", "20001-20032")]
    assert said(APART, port="weights") == [("weight_sync.default", "weights", "20002")]
    assert said(APART, port="metrics") == [("router-default", "metrics", "20001")]


def test_gpus_beside_a_trainer_of_its_own() -> None:
    """Hosts and GPUs come with the slots they are, and with the trainer's."""
    assert said(APART, gpus=True, engine="default-0") == [
        ("default-0.0", "host", "node-1 (10.0.0.2)"),
        ("default-0.0", "gpus", "0,1,2,3,4,5,6,7"),
    ]
    assert one(APART, "gpus", engine="default-0").sentence == "slots 8-15 of 24, apart from the trainer's 0-7"


def test_gpus_shared_and_free() -> None:
    """On the trainer's own slots an engine is colocated; without a trainer that is said."""
    assert one(MIXED, "gpus", engine="default-1").sentence == "slots 2-3 of 8, colocated: the trainer holds 0-3 too"
    assert one(MIXED, "gpus", engine="default-2").sentence == "slots 4-5 of 8, apart from the trainer's 0-3"
    assert one(FREE, "gpus", engine="default-1").sentence == "slots 1 of 8; no trainer holds any"


def test_a_process_without_slots() -> None:
    """GPUs that the cluster does not have are shown, with no slot."""
    process = evolve(processes(FREE)[0], gpus=("x",))
    lost = evolve(FREE, engines=(evolve(FREE.engines[0], processes=(process,)),))
    assert one(lost, "gpus", gpus=True).sentence.startswith("slots none of 8")


@pytest.mark.parametrize(
    ("transport", "value"),
    [
        (Transport.IPC, "ipc, trainer ranks 0-3"),
        (Transport.NCCL, "nccl, ranks 1-8 of 17 at 10.0.0.1:20002"),
        (Transport.USER, "user, ranks 1-8 of 17 at 10.0.0.1:20002"),
        (Transport.DISK, "disk"),
    ],
)
def test_ways_of_weights(transport: Transport, value: str) -> None:
    """An engine's part in the weight sync is told with its ranks, and why this way."""
    base = PD if transport is Transport.IPC else APART
    sync = base.weight_sync[0]
    ranks = {} if transport is not Transport.DISK else {"rank_offset": None}
    members = (evolve(sync.engines[0], transport=transport, **ranks), *sync.engines[1:])
    line = one(evolve(base, weight_sync=(evolve(sync, engines=members),)), "weights", engine="default-0")
    assert line.value == value
    assert line.source in {Source.PLACEMENT, Source.USER, Source.TRAINER}
    assert line.sentence


def test_routers_of_both_modes() -> None:
    """An engine says how its router knows it, and a router names the engine behind each member."""
    assert one(APART, "router", engine="default-0").sentence == "the head becomes a member once it has answered"
    assert one(PD, "router", engine="default-1").sentence.startswith("a prefill/decode router")
    heads = [line.sentence for line in explain(PD, Question(process="router-default")) if line.what == "member"]
    assert heads == ["the head of default-0", "the head of default-1"]
    alone = evolve(APART, engines=())
    assert one(evolve(alone, routers=(evolve(APART.routers[0], worker_urls=("u",)),)), "member").value == "u"


def test_an_engine_behind_no_router() -> None:
    """An engine that no router reaches has no line about one, nor about weights that nobody updates."""
    bare = evolve(FREE, routers=(evolve(FREE.routers[0], worker_urls=()),), start_order=())
    assert {line.about for line in explain(bare, Question(engine="default-0"))} == {
        About.ENGINE,
        About.GPUS,
        About.FLAG,
        About.ENV,
        About.PORT,
    }


def test_engines_that_somebody_else_runs() -> None:
    """An engine without processes says so, and that its router was started with its url."""
    found = plan({"hf_checkpoint": "m", "rollout_external_engine_addrs": ["10.1.1.1:8000"]})
    assert one(found, "url", engine="default-0").sentence.startswith("somebody else runs it")
    assert one(found, "router", engine="default-0").sentence == "the router is started with its url"
    assert refusal(found, engine="default-0", process="default-0.0")[2] == Code.UNKNOWN_KEY.remedy
    assert ("plan", "rollout_external_engine_addrs") in {(w, where.partition("[")[0]) for w, where in notes(found)}


def test_start_order() -> None:
    """Who waits for whom is told at the engine concerned."""
    line = one(APART, "start order", engine="default-1")
    assert line.sentence == "default-1.0 goes into service only once router-default is ready"
    assert one(PD, "start order", engine="default-0").value == "default-0.0, router-default"


def test_the_plan_itself() -> None:
    """Releases, hardware and the trainer's slots are told once, and by nobody's wish."""
    lines = {line.what: line for line in explain(MIXED) if line.where == "plan"}
    assert lines["trainer slots"].value == "0-3 of 8"
    assert "shared" in lines["trainer slots"].sentence
    assert lines["hardware"].value == "not known"
    assert {line.source for line in lines.values()} == {None}
    assert "its own" in one(APART, "trainer slots").sentence


def test_parts_of_an_answer() -> None:
    """An engine answers with its processes, a process with what its engine shares, and with nothing of others."""
    wide = plan({**SHARED, "actor_num_nodes": 2, "rollout_num_gpus_per_engine": 16}, "2x8")
    assert {w for w, _, _ in said(wide, engine="default-0")} == {"default-0", "default-0.0", "default-0.1"}
    assert {w for w, _, _ in said(wide, process="default-0.1")} == {"default-0", "default-0.1"}
    assert said(wide, engine="default-0", process="default-0.1") == said(wide, process="default-0.1")
    assert {w for w, _, _ in said(wide, process="router-default")} == {"router-default"}


def notes(found: LaunchPlan, **asked: object) -> list[tuple[str, str]]:
    """Return place and subject of the notes in an answer."""
    return [(line.where, line.what) for line in explain(found, Question(**asked)) if line.about is About.NOTE]


def test_notes_are_told_where_they_matter() -> None:
    """A note about a flag of one group is told by that group's engines, and with the flag."""
    assert notes(PD, engine="default-0") == [("default-0", "kv_transfer_config")]
    (prefill,) = (line for line in explain(PD, Question(engine="default-0")) if line.about is About.NOTE)
    assert "prefill" in prefill.sentence
    assert notes(PD, flag="kv_transfer_config") == [
        ("default-0", "kv_transfer_config"),
        ("default-1", "kv_transfer_config"),
    ]
    assert notes(PD, flag="seed") == notes(PD, flag="host") == []


def test_notes_of_one_flag_alone() -> None:
    """A note about a flag that no engine has is told of the plan, though its reason is that of another flag."""
    reason = one(FREE, "--seed", engine="default-0").sentence
    found = evolve(FREE, notes=(Note("set_for_you", "max_model_len", f"max_model_len 8: {reason}"),))
    assert notes(found) == [("plan", "max_model_len")]


def test_notes_on_entries() -> None:
    """A note about an entry that the user set against the planner is told with that entry."""
    given = {"num_gpus": 1, "num_gpus_per_engine": 1, "env": {"VLLM_BATCH_INVARIANT": "0"}}
    other = {"num_gpus": 1, "num_gpus_per_engine": 1}
    found = plan(grouped(given, other, vllm_enable_deterministic_inference=True), moe=False)
    assert notes(found) == notes(found, engine="actor-0") == notes(found, env="VLLM_BATCH_INVARIANT")
    assert [where for where, _ in notes(found)] == ["actor-0"]


def test_notes_on_models_and_plans() -> None:
    """A note about a model or its path is told by its engines; one about no part is told of the plan."""
    unknown = plan({**ALONE, "rollout_num_gpus": 2, "vllm_data_parallel_size": 2, "rollout_num_gpus_per_engine": 2})
    assert notes(unknown) == [("default-0", "m"), ("default-0", "vllm_data_parallel_size")]
    cluster = {"nodes": [{"name": "h", "address": "127.0.0.1", "gpus": 2}], "hardware": "cpu"}
    cpu = plan({**SHARED, "actor_num_gpus_per_node": 2}, cluster)
    assert notes(cpu) == [("default-0", "default"), ("default-1", "default"), ("plan", "enable_sleep_mode")]
    assert notes(plan({**ALONE, "colocate": True, "rollout_num_gpus": 1})) == [("plan", "colocate")]


def test_unknown_names_and_their_nearest() -> None:
    """A name that the plan does not have is refused with the nearest that it has."""
    assert refusal(PD, engine="defalt-1") == ("--engine", "defalt-1", "did you mean default-1?")
    assert refusal(PD, process="router-defaul") == ("--process", "router-defaul", "did you mean router-default?")
    assert refusal(PD, flag="max-model-lens", process="default-0.0")[0] == "--flag"
    assert refusal(PD, flag="tensor_parallel")[2] == "did you mean --tensor-parallel-size?"
    assert refusal(PD, env="VLLM_PROT") == ("--env", "VLLM_PROT", "did you mean VLLM_PORT?")
    assert refusal(PD, port="htp") == ("--port", "htp", "did you mean http?")
    assert refusal(PD, engine="default-0", process="default-1.0")[2] == "did you mean default-0.0?"
    assert refusal(PD, engine="default-0", process="router-default")[2] == "did you mean default-0.0?"


def test_names_where_there_are_none() -> None:
    """Where nothing of the kind exists, no name is near."""
    empty = plan({**SHARED, "debug_train_only": True})
    assert refusal(empty, engine="default-0") == ("--engine", "default-0", Code.UNKNOWN_KEY.remedy)
    assert refusal(PD, process="router-default", gpus=True) == ("--gpus", "no GPU here", Code.UNKNOWN_KEY.remedy)
