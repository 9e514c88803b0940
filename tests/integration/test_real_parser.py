"""Every command line of the kept plans and cases, under the real parsers of the installed vLLM and vllm-router.

vLLM's parser is asked in one process for all of them: importing vLLM takes most of the time, and starts nothing.
"""

import json
import os
import subprocess
import sys

import pytest
from tests.cases.load import Case, cases

from vime_adapters.router.check import check_router_args
from vime_core import LaunchPlan
from vime_core.plan import Engine, Process

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

ACCEPTED = [case for case in cases() if case.refused is None]


@pytest.fixture(scope="module")
def plans() -> dict[str, LaunchPlan]:
    """Return the plan of every accepted case."""
    return {case.id: case.plan() for case in ACCEPTED}


@pytest.fixture(scope="module")
def understood(plans: dict[str, LaunchPlan]) -> dict[tuple[str, ...], dict[str, object] | str]:
    """Return what vLLM's parser makes of every distinct engine command line, or the reason why it refuses one."""
    lines = sorted({p.argv for plan in plans.values() for e in plan.engines for p in e.processes})
    clean = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps([argv[1:] for argv in lines]),
        capture_output=True,
        text=True,
        env={**clean, "VLLM_LOGGING_LEVEL": "ERROR"},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout[done.stdout.index("[") :])
    return dict(zip(lines, answers, strict=True))


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
        **(wide if engine.nnodes > 1 else {"nnodes": 1, "headless": False}),
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
