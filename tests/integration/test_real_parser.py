"""Every command line of the kept plans and cases, under the real parsers of the installed vLLM and vllm-router.

vLLM's parser is asked in one process for all of them: importing vLLM takes most of the time, and starts nothing.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping

import attrs
import pytest
from tests.cases.load import Case, cases
from vllm_router.router_args import RouterArgs

from vime_adapters.arguments import parse_flags
from vime_adapters.router.check import check_router_args
from vime_core import Cluster, LaunchPlan, make_plan, parse
from vime_core.plan import Balance, Engine, Process

ASK = """
import argparse, json, sys
from vllm.entrypoints.cli.serve import cmd_init
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
commands = parser.add_subparsers(dest="subparser")
(serve,) = cmd_init()
serve.subparser_init(commands)
answers = []
for argv in json.load(sys.stdin):
    try:
        found = parser.parse_args(argv)
        serve.validate(found)
        answers.append({k: v for k, v in vars(found).items() if isinstance(v, str | int | bool | None)})
    except (SystemExit, TypeError, ValueError) as error:
        answers.append(str(error))
json.dump(answers, sys.stdout)
"""

PLAN = """
import argparse, sys
from vllm.entrypoints.cli.serve import cmd_init
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vime_core import Cluster, PlanRefused, make_plan, render

parser = FlexibleArgumentParser()
commands = parser.add_subparsers(dest="subparser")
(serve,) = cmd_init()
serve.subparser_init(commands)
found = vars(parser.parse_args(["serve", *sys.argv[1:]]))
ours = found.keys() - {"subparser", "config", "dispatch_function"}
held = {f"vllm_{name}": found[name] for name in sorted(ours)}
args = argparse.Namespace(hf_checkpoint="m", debug_rollout_only=True, rollout_num_gpus=2, **held)
try:
    print("PLAN" + render(make_plan(args, Cluster.uniform(1, 8))))
except PlanRefused as refused:
    print("PLAN" + str(refused))
"""

BARE = {"hf_checkpoint": "m", "debug_rollout_only": True, "rollout_num_gpus": 2}

ACCEPTED = [case for case in cases() if case.refused is None]


@pytest.fixture(scope="module")
def plans() -> dict[str, LaunchPlan]:
    """Return the plan of every accepted case."""
    return {case.id: case.plan() for case in ACCEPTED}


def ask(program: str, *args: str, text: str = "") -> str:
    """Return what a program says in a process of its own, without vLLM's variables."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    done = subprocess.run(
        [sys.executable, "-c", program, *args],
        input=text,
        capture_output=True,
        text=True,
        env={**clean, "VLLM_LOGGING_LEVEL": "ERROR"},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def understood(plans: dict[str, LaunchPlan]) -> dict[tuple[str, ...], dict[str, object] | str]:
    """Return what vLLM's parser makes of every distinct engine command line, or the reason why it refuses one."""
    lines = sorted({p.argv for plan in plans.values() for e in plan.engines for p in e.processes})
    said = ask(ASK, text=json.dumps([argv[1:] for argv in lines]))
    answers = json.loads(said[said.index("[") :])
    return dict(zip(lines, answers, strict=True))


def over_hosts(engine: Engine) -> bool:
    """Whether ranks of one world are in several processes: not where each process holds replicas of its own."""
    return (
        engine.nnodes
        > {Balance.INTERNAL: 1, Balance.EXTERNAL: engine.dp, Balance.HYBRID: engine.nnodes}[engine.balance]
    )


def expected(engine: Engine, process: Process) -> dict[str, object]:
    """Return what the parser must have understood of a process."""
    ports = {use.name: use.interval.start for use in process.ports}
    wide = {
        "nnodes": engine.nnodes,
        "node_rank": process.node_rank,
        "master_addr": engine.processes[0].address,
        "distributed_executor_backend": "mp",
        "data_parallel_backend": "mp",
        "headless": process.headless,
    }
    head = {"host": process.address, "port": ports.get("http")}
    return {
        "tensor_parallel_size": engine.tp,
        "pipeline_parallel_size": engine.pp,
        "data_parallel_size": engine.dp,
        "prefill_context_parallel_size": engine.pcp,
        "seed": engine.seed,
        "model_tag": process.argv[2],
        **({} if process.headless else head),
        **(wide if over_hosts(engine) else {"nnodes": 1, "headless": False}),
    }


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case.id)
def test_engines_parse(case: Case, plans: dict, understood: dict) -> None:
    """vLLM's parser takes every engine command line and reads the sizes, ranks and addresses that the plan means."""
    for engine in plans[case.id].engines:
        for process in engine.processes:
            found = understood[process.argv]
            assert not isinstance(found, str), (found, process.argv)
            wanted = expected(engine, process)
            assert {name: found[name] for name in wanted} == wanted


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case.id)
def test_routers_parse(case: Case, plans: dict) -> None:
    """The router's own parser and validation take every router command line."""
    for router in plans[case.id].routers:
        assert check_router_args(router.argv) == []


DOTTED = (
    "--vllm-additional-config.a.b 5k --vllm-additional-config.a.c+ x --vllm-additional-config.a.c+=y,z",
    "--vllm-override-generation-config.top_p 0.9 --vllm-override_generation_config.x null",
    "--vllm-hf-overrides.text_config.rope 1_000 --vllm-hf-overrides.name 1.5K --vllm-hf-overrides.list [1,2]",
    "--vllm-limit-mm-per-prompt.image 2 --vllm-limit-mm-per-prompt.image 3",
    "--vllm-cc.mode 3 --vllm-cc.pass_config.fuse_norm_quant false",
    "--vllm-kv-transfer-config.kv_connector=NixlConnector --vllm-kv-transfer-config.kv_role kv_both"
    " --vllm-kv-transfer-config.engine_id e",
    "--vllm-O3",
)


def by_keys(line: str) -> list[str]:
    """Return the flags of a trainer's command line as vLLM's own."""
    short = {"--vllm-cc": "-cc", "--vllm-O": "-O"}
    return [
        next((w.replace(*pair) for pair in short.items() if pair[0] in w), w.replace("--vllm-", "--"))
        for w in line.split()
    ]


def test_keys_one_by_one_are_read_as_vllm_reads_them() -> None:
    """The JSON that a plan makes of dotted keys means to the real parser what the keys themselves mean."""
    held = "{k: v for k, v in vars(found).items() if isinstance(v, str | int | bool | None)}"
    assert held in ASK
    program = ASK.replace(held, "json.dumps(vars(found), sort_keys=True, default=repr)")
    argv = [_argv(parse_flags(line.split())) for line in DOTTED]
    argv += [[*_argv({}), *by_keys(line)] for line in DOTTED]
    said = ask(program, text=json.dumps(argv))
    answers = json.loads(said[said.index("[") :])
    assert all(answer.startswith("{") for answer in answers)
    assert answers[: len(DOTTED)] == answers[len(DOTTED) :]


def _argv(more: Mapping[str, object]) -> list[str]:
    (engine,) = make_plan({**BARE, "rollout_num_gpus": 1, **more}, Cluster.uniform(1, 8)).engines
    return list(engine.processes[0].argv[1:])


def planned(*flags: str) -> str:
    """Return the text of the plan, or the refusal, for the Namespace that vLLM's own parser makes of some flags."""
    return ask(PLAN, *flags).partition("PLAN")[2].rstrip("\n")


def test_a_namespace_of_vllms_own_defaults_asks_for_nothing() -> None:
    """Every default of the real parser counts as not given; where the planner chose otherwise, a note says so."""
    found = parse(planned())
    assert attrs.evolve(found, notes=()) == make_plan(BARE, Cluster.uniform(1, 8))
    assert [(note.code, note.where) for note in found.notes] == [("default_replaced", "vllm_logprobs_mode")]


def test_what_the_real_parser_makes_of_values_is_given() -> None:
    """Values beside the defaults reach the engines as text, whatever the real parser makes of them."""
    flags = ("--mamba-backend", "flashinfer", "--limit-mm-per-prompt", '{"image": 4}', "--optimization-level", "3")
    given = {"vllm_mamba_backend": "flashinfer", "vllm_limit_mm_per_prompt": {"image": 4}, "vllm_optimization_level": 3}
    found = attrs.evolve(parse(planned(*flags)), notes=())
    assert found == make_plan({**BARE, **given}, Cluster.uniform(1, 8))


def test_objects_of_the_real_parser_are_not_dropped() -> None:
    """An object that the parser made of a user's JSON is refused rather than taken for the default."""
    refusal = planned("--compilation-config", '{"cudagraph_mode": "NONE"}')
    assert refusal.startswith("VIME102")
    assert "vllm_compilation_config" in refusal


@pytest.mark.parametrize("prefixed", [True, False])
def test_a_namespace_of_the_routers_own_defaults_asks_for_nothing(prefixed: bool) -> None:
    """The defaults of the router's parser, and of its class of arguments, count as not given."""
    parser = argparse.ArgumentParser()
    RouterArgs.add_cli_args(parser, use_router_prefix=True, exclude_host_port=True)
    held = vars(parser.parse_args([])) if prefixed else {f"router_{k}": v for k, v in vars(RouterArgs()).items()}
    found = make_plan(argparse.Namespace(**BARE, **held), Cluster.uniform(1, 8))
    assert attrs.evolve(found, notes=()) == make_plan(BARE, Cluster.uniform(1, 8))
    assert [(note.code, note.where) for note in found.notes] == [("default_replaced", "router_request_timeout_secs")]
