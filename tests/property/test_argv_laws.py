"""Laws of command lines: what every process of an engine is told, and what only some are."""

import re

from hypothesis import given
from hypothesis import strategies as st
from tests.oracles.layout import expected
from tests.oracles.parser import parsed
from tests.strategies.effort import effort
from tests.strategies.options import FREE, values_of
from tests.strategies.requests import Made, made

from vime_core import DEFAULT_VLLM
from vime_core.vllm.catalogue import read
from vime_core.vllm.owned import BALANCE, HEAD_ONLY, OWNED, PARALLEL

SPREAD = {
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--data-parallel-backend",
    "--distributed-executor-backend",
}
"""Flags of engines over several processes."""
FREE_DESTS = sorted(flag.dest for flag in FREE)


def every_process(made: Made):
    """Yield every process with its engine."""
    return [(engine, process) for engine in made.plan.engines for process in engine.processes]


def told(argv: tuple[str, ...], flag: str) -> str | None:
    """Return the token after ``flag``, None where the flag is absent."""
    return argv[argv.index(flag) + 1] if flag in argv else None


class TestEntryPoint:
    """Every process, followers too, is started as `vllm serve MODEL` (by the CPU's own program on CPU hosts)."""

    @given(made())
    def test_law(self, made: Made):
        """Look at the first three words."""
        program = "vime-vllm-cpu" if made.story.facts.get("hardware") == "cpu" else "vllm"
        config = made.story.args.get("vllm_config", {"vllm": []})["vllm"]
        paths = {m["name"]: m.get("model_path", "org/actor") for m in config}
        for engine, process in every_process(made):
            assert process.argv[:3] == (program, "serve", paths.get(engine.model, "org/actor"))


class TestLoneEngines:
    """An engine of one process carries no flag of engines over several, and is never headless."""

    @given(made())
    def test_law(self, made: Made):
        """Look for the flags."""
        for engine, process in every_process(made):
            if engine.nnodes == 1:
                assert not (SPREAD | {"--headless"}) & set(process.argv)


class TestSpreadEngines:
    """An engine whose API needs several processes carries all flags of such engines on every rank, and mp twice.

    Processes that are each the API of whole replicas are told nothing of node ranks.
    """

    @given(made())
    def test_law(self, made: Made):
        """Look at every rank of every engine of several processes."""
        wants = expected(made.story.args, made.story.facts)
        meets = {e.id: want.meets for e, want in zip(made.plan.engines, wants, strict=True)}
        for engine, process in every_process(made):
            if not meets[engine.id]:
                assert not SPREAD & set(process.argv)
            else:
                assert set(process.argv) >= SPREAD
                assert told(process.argv, "--nnodes") == str(engine.nnodes)
                assert told(process.argv, "--node-rank") == str(process.node_rank)
                assert told(process.argv, "--distributed-executor-backend") == "mp"
                assert told(process.argv, "--data-parallel-backend") == "mp"


class TestHeadless:
    """--headless is on every process without an API, and only those with one are told where to serve: on their host."""

    @given(made())
    def test_law(self, made: Made):
        """Look for the three flags."""
        for engine, want in zip(made.plan.engines, expected(made.story.args, made.story.facts), strict=True):
            for rank, process in enumerate(engine.processes):
                serves = rank in want.serving
                assert ("--headless" in process.argv) == (not serves)
                assert ("--port" in process.argv) == serves
                assert told(process.argv, "--host") == (want.processes[rank][0][1] if serves else None)


class TestMasterAddress:
    """All ranks of an engine are given one master, letter for letter: the address of rank 0's host, and one port."""

    @given(made())
    def test_law(self, made: Made):
        """Compare what the ranks are told with each other and with the slot of rank 0."""
        for engine, want in zip(made.plan.engines, expected(made.story.args, made.story.facts), strict=True):
            if want.meets:
                masters = {(told(p.argv, "--master-addr"), told(p.argv, "--master-port")) for p in engine.processes}
                ((address, port),) = masters
                assert address == want.slots[0][1]
                assert int(port) in [use.interval.start for use in engine.processes[0].ports]


class TestSizesInArgv:
    """Tensor parallelism is always told; pipeline, data and context parallelism only above 1, by vLLM's own names."""

    @given(made())
    def test_law(self, made: Made):
        """Compare with the engine's sizes; SGLang's spellings never occur."""
        for engine, process in every_process(made):
            assert told(process.argv, "--tensor-parallel-size") == str(engine.tp)
            for flag, size in (
                ("--pipeline-parallel-size", engine.pp),
                ("--data-parallel-size", engine.dp),
                ("--prefill-context-parallel-size", engine.pcp),
            ):
                assert told(process.argv, flag) == (str(size) if size > 1 else None)
            assert not {"--pp-size", "--tp-size", "--dp-size", "--dist-init-addr", "--nccl-port"} & set(process.argv)


class TestSeeds:
    """All ranks of an engine share one seed, the trainer's plus the engine's index; no two engines share theirs."""

    @given(made())
    def test_law(self, made: Made):
        """Read the seeds off the command lines."""
        first = int(made.story.args.get("seed", 1234))
        seeds = [{told(p.argv, "--seed") for p in e.processes} for e in made.plan.engines]
        assert seeds == [{str(first + i)} for i in range(len(seeds))]
        assert [e.seed for e in made.plan.engines] == [first + i for i in range(len(seeds))]


class TestArgvParses:
    """The command line of every process parses under the target release, by our reader and by a real parser alike."""

    @given(made())
    def test_law(self, made: Made):
        """Parse both ways and compare what was given."""
        for _, process in every_process(made):
            found = read(DEFAULT_VLLM, process.argv[3:])
            assert found.keys() == parsed(DEFAULT_VLLM, process.argv[3:]).keys()


class TestEachFlagOnce:
    """No option is given twice to one process."""

    @given(made())
    def test_law(self, made: Made):
        """Count the options by their dest; a repeatable one may repeat, within one argument."""
        for _, process in every_process(made):
            dests = [DEFAULT_VLLM.spelled(arg.tokens[0].partition("=")[0]) for arg in process.args[1:]]
            assert len({flag.dest for flag in dests}) == len(dests)


class TestUserValuesAreApplied:
    """Every vLLM option of a group reaches every process of that group, with the value as given."""

    @effort(2)
    @given(made())
    def test_law(self, made: Made):
        """Read every command line with a real parser and look each given option up."""
        for engine, want in zip(made.plan.engines, expected(made.story.args, made.story.facts), strict=True):
            for process in engine.processes:
                found = read(DEFAULT_VLLM, process.argv[3:])
                for dest, value in want.group.options.items():
                    if dest in {*PARALLEL, *BALANCE} or (dest in HEAD_ONLY and process.headless):
                        continue
                    flag = DEFAULT_VLLM.get(dest)
                    if flag.valueless:
                        on = str(value).lower() == "true"
                        absent = flag.action == "store_false"
                        assert found.get(dest, absent) is on
                    elif isinstance(value, str | int | float):
                        assert found[dest] == (str(value),)
                    elif isinstance(value, list):
                        assert found[dest] == tuple(map(str, value))

    @effort(2)
    @given(made(forms=("plain", "short")), st.sampled_from(FREE_DESTS), st.data())
    def test_one_more(self, made: Made, dest: str, data: st.DataObject):
        """Give one more option: it changes every command line there, or the plan is refused or says why not."""
        value = data.draw(values_of(DEFAULT_VLLM.get(dest)))
        story = made.story.given(**{f"vllm_{dest}": value})
        if story.problems():
            assert all(f"vllm_{dest}" in p.where for p in story.problems())
            return
        for engine in story.plan().engines:
            for process in engine.processes:
                mine = [arg for arg in process.args if re.search(rf"given as vllm_{dest}\b", arg.reason.text)]
                flag = DEFAULT_VLLM.get(dest)
                silent = flag.action == "store_true" and str(value).lower() == "false"
                silent = silent or (dest in HEAD_ONLY and process.headless)
                assert len(mine) == (0 if silent else 1)


class TestNothingElseIsGiven:
    """What neither user, trainer, layout nor a stated rule asks for is on no command line."""

    @given(made())
    def test_law(self, made: Made):
        """Everything on a command line has a reason, and options with the user's name on them are the user's."""
        for engine, want in zip(made.plan.engines, expected(made.story.args, made.story.facts), strict=True):
            for process in engine.processes:
                for arg in process.args[1:]:
                    flag = DEFAULT_VLLM.spelled(arg.tokens[0].partition("=")[0])
                    theirs = flag.dest in want.group.options
                    if flag.dest in BALANCE:  # one way may lead to the other
                        theirs = any(dest in want.group.options for dest in BALANCE)
                    assert arg.reason.text
                    assert (arg.reason.source.value == "user") == theirs
                    assert not theirs or flag.dest not in OWNED


class TestSharedByAllRanks:
    """Ranks of one engine differ only in their ranks, in --headless and in what only those that serve are told."""

    @given(made())
    def test_law(self, made: Made):
        """Take those away and compare every rank with the head."""
        own = {"--node-rank", "--data-parallel-rank", "--data-parallel-start-rank"}
        own |= {"--headless", "--host", "--port", "--enable-scale-out", "--api-server-count"}
        for engine in made.plan.engines:
            rest = [[a.tokens for a in p.args if a.tokens[0] not in own] for p in engine.processes]
            rest = [[t for t in args if t[0].removeprefix("--no-") != "enable-scale-out"] for args in rest]
            assert all(args == rest[0] for args in rest)


class TestDerivedOptions:
    """Sleep mode, context length, log-probs, fp16 and, of trained models, experts follow the trainer's arguments."""

    @effort(2)
    @given(made())
    def test_law(self, made: Made):
        """Derive each anew for every group."""
        args = made.story.args
        together = made.plan.colocate
        offload = args.get("offload_rollout", args.get("offload", together))
        cpu = made.story.facts.get("hardware") == "cpu"  # where vLLM refuses both switches
        rules = {
            "enable_sleep_mode": True if offload and not cpu else None,
            "max_model_len": (str(args["rollout_max_context_len"]),) if "rollout_max_context_len" in args else None,
            "logprobs_mode": ("processed_logprobs",),
            "dtype": ("float16",) if args.get("fp16") else None,
        }
        for engine, want in zip(made.plan.engines, expected(args, made.story.facts), strict=True):
            replay = args.get("use_rollout_routing_replay") and want.group.updates
            rules["enable_return_routed_experts"] = True if replay and not cpu else None
            for process in engine.processes:
                found = read(DEFAULT_VLLM, process.argv[3:])
                for dest, value in rules.items():
                    if dest not in want.group.options:
                        assert found.get(dest) == value


class TestEagerWithPipelines:
    """Pipeline parallelism of a model with experts gets --enforce-eager, with a note; refusing eager is refused."""

    @given(made())
    def test_law(self, made: Made):
        """Compare the flag, the note and the refusal with the rule."""
        eager = [e.pp > 1 and made.story.moe is True for e in made.plan.engines]
        for engine, on in zip(made.plan.engines, eager, strict=True):
            assert all(("--enforce-eager" in p.argv) == on for p in engine.processes)
        assert any(n.where == "enforce_eager" for n in made.plan.notes) == any(eager)
        against = made.story.given(vllm_enforce_eager=False)
        assert bool(against.problems()) == any(eager)
