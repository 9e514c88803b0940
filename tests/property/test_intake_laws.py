"""Laws of intake: every name is understood, refused with what was meant, or none of ours; spelling decides nothing."""

import json
from argparse import Namespace

from attrs import evolve
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.strategies.effort import effort
from tests.strategies.options import FREE, FREE_ROUTER, JSONS
from tests.strategies.requests import Made, Story, made

from vime_core import DEFAULT_ROUTER, DEFAULT_VLLM, Code, ModelFacts, make_plan
from vime_core.flags import from_flags
from vime_core.intake import ROUTER_OWNED
from vime_core.names import LAUNCHER, MEGATRON, ROLLOUT_ELSEWHERE, TRAINER
from vime_core.vllm.catalogue import Flag
from vime_core.vllm.owned import OWNED
from vime_core.vllm.sglang import SGLANG

OURS = sorted({*TRAINER, *LAUNCHER, *ROLLOUT_ELSEWHERE, *(f"vllm_{f.dest}" for f in DEFAULT_VLLM.flags)})
LETTERS = "abcdefghijklmnopqrstuvwxyz_0"


@st.composite
def misspelt(draw: st.DrawFn, names: list[str]) -> tuple[str, str]:
    """Return a name and the same with one letter changed, left out, doubled or swapped, its prefix intact."""
    name = draw(st.sampled_from(names))
    start = name.index("_") + 1
    at = draw(st.integers(start, len(name) - 1))
    how = draw(st.sampled_from(["change", "drop", "double", "swap"]))
    if how == "change":
        return name, name[:at] + draw(st.sampled_from(LETTERS)) + name[at + 1 :]
    if how == "drop":
        return name, name[:at] + name[at + 1 :]
    if how == "double":
        return name, name[: at + 1] + name[at:]
    return name, name[:at] + name[at + 1 : at + 2] + name[at] + name[at + 2 :]


def known(name: str) -> bool:
    """Whether a name of ours is one that somebody reads."""
    for prefix, catalogue in (("vllm_", DEFAULT_VLLM), ("router_", DEFAULT_ROUTER)):
        if name.startswith(prefix) and (catalogue.get(name.removeprefix(prefix)) or name in LAUNCHER):
            return True
    return name in TRAINER or name in ROLLOUT_ELSEWHERE or name in MEGATRON


def spelt(flag: str) -> bool:
    """Whether vLLM's parser knows a flag, given with vllm- and no leading dashes, by an alias or a negative too."""
    rest = flag.removeprefix("vllm-")
    return any(DEFAULT_VLLM.spelled(dashes + rest) for dashes in ("--", "-", "--no-"))


class TestTyposAreRefused:
    """A misspelt argument with a prefix of ours is refused, by its own name, as a flag of a command line too."""

    @effort(4)
    @given(made(), misspelt([n for n in OURS if n.startswith(("vllm_", "rollout_"))]))
    def test_law(self, made: Made, names: tuple[str, str]):
        """Misspell one argument of vLLM, of the launcher or of rollout."""
        _, wrong = names
        assume(not known(wrong))
        problems = made.story.given(**{wrong: 1}).problems()
        assert [p.where for p in problems] == [wrong]
        assert problems[0].code in {Code.UNKNOWN_ARGUMENT, Code.SGLANG_NAME}

    @effort(4)
    @given(
        made(forms=("plain",)),
        misspelt([n for n in OURS if n.startswith(("vllm_", "rollout_"))]),
        st.sampled_from(["--{} {}", "--{}={}", "--{}", "--no-{}", "--no-{} {}"]),
        st.sampled_from(["1", "x", "{}", "false"]),
    )
    def test_flags(self, made: Made, names: tuple[str, str], form: str, value: str):
        """Misspell one flag of a command line, with its value, without one, or switched off."""
        _, wrong = names
        flag = wrong.replace("_", "-")
        assume(not known(wrong) and not spelt(flag))
        words = form.format(flag, value).split(" ")
        assert words[0].startswith(("--vllm-", "--rollout-", "--no-vllm-", "--no-rollout-"))
        args = from_flags(["python", "train.py", "--bf16", *words], DEFAULT_VLLM, DEFAULT_ROUTER)
        problems = made.story.given(**args).problems()
        assert [p.where for p in problems] == [wrong]
        assert problems[0].code in {Code.UNKNOWN_ARGUMENT, Code.SGLANG_NAME}

    @effort(2)
    @given(made(), misspelt([f"router_{f.dest}" for f in FREE_ROUTER]))
    def test_router(self, made: Made, names: tuple[str, str]):
        """Misspell one argument of the router."""
        _, wrong = names
        assume(not known(wrong))
        (problem,) = made.story.given(**{wrong: 1}).problems()
        assert (problem.where, problem.code) == (wrong, Code.UNKNOWN_ARGUMENT)

    @effort(2)
    @given(made(forms=("yaml",)), misspelt([f"o_{f.dest}" for f in FREE]), st.sampled_from([1, None, "x"]))
    def test_overrides(self, made: Made, names: tuple[str, str], value: object):
        """Misspell one key of a group's overrides; giving it no value makes it no less unknown."""
        wrong = names[1].removeprefix("o_")
        assume(DEFAULT_VLLM.get(wrong) is None)
        story = made.story.copy()
        group = next(g for g in story.groups if g["worker_type"] != "placeholder")
        key = "vllm_overrides" if "vllm_overrides" in group else "overrides"
        group[key] = {**group.get(key, {}), wrong: value}
        (problem,) = story.problems()
        assert problem.where.endswith(f".{key}.{wrong}")


class TestTyposAreGuessed:
    """The refusal of a name with one wrong letter names the right one, or one at least as like it."""

    @effort(2)
    @given(made(forms=("plain",)), misspelt([f"vllm_{f.dest}" for f in FREE if len(f.dest) > 6]))
    def test_law(self, made: Made, names: tuple[str, str]):
        """Misspell a long name and read the refusal."""
        _, wrong = names
        assume(not known(wrong) and wrong.removeprefix("vllm_") not in SGLANG)
        (problem,) = made.story.given(**{wrong: 1}).problems()
        assert "did you mean vllm_" in problem.allowed


class TestOwnedOptions:
    """An option that the planner derives is refused wherever it is given, with what to do instead."""

    @given(made(), st.sampled_from(sorted(OWNED)), st.sampled_from([1, "x", True, {}]))
    def test_law(self, made: Made, dest: str, value: object):
        """Give it among the arguments and in overrides."""
        story = made.story.given(**{f"vllm_{dest}": value})
        found = {(p.code, p.where) for p in story.problems()}
        assert (Code.OWNED, f"vllm_{dest}") in found or dest == "config"
        if "vllm_config" in made.story.args:
            deep = made.story.copy()
            group = next(g for g in deep.groups if g["worker_type"] != "placeholder")
            group.setdefault("overrides", group.pop("vllm_overrides", {}))[dest] = value
            assert [(p.code, p.hint) for p in deep.problems()] == [(Code.OWNED, OWNED[dest])]

    @given(made(), st.sampled_from(sorted(ROUTER_OWNED)))
    def test_router(self, made: Made, dest: str):
        """Give a router option that follows from the plan."""
        problems = made.story.given(**{f"router_{dest}": "x"}).problems()
        assert [(p.code, p.where, p.hint) for p in problems] == [(Code.OWNED, f"router_{dest}", ROUTER_OWNED[dest])]


class TestSglangNames:
    """SGLang's name for an option is refused with vLLM's name for it, or with what to do where there is none."""

    NAMES = sorted(name for name in SGLANG if DEFAULT_VLLM.get(name) is None and name not in OWNED)

    @given(made(), st.sampled_from(NAMES), st.sampled_from(["vllm_", "sglang_"]))
    def test_law(self, made: Made, name: str, prefix: str):
        """Give it with either prefix."""
        assume(prefix + name not in LAUNCHER)
        (problem,) = made.story.given(**{prefix + name: 1}).problems()
        assert (problem.code, problem.where) == (Code.SGLANG_NAME, prefix + name)
        meant = SGLANG[name]
        if meant in OWNED:
            assert (problem.allowed, problem.hint) == ("nothing", OWNED[meant])
        else:
            assert problem.allowed == (f"vllm_{meant}" if meant else "nothing: vLLM has no such option")


class TestStrangersPassBy:
    """An argument that is none of ours changes nothing; one that looks like one of ours is noted."""

    NAMES = st.text(st.sampled_from(LETTERS), min_size=1, max_size=12)

    @given(made(), NAMES, st.sampled_from([1, None, "x", [1], {"a": {}}, object()]))
    def test_law(self, made: Made, name: str, value: object):
        """Give an argument of any other name."""
        assume(not known(name) and not name.startswith(("vllm_", "router_", "rollout_", "sglang_", "_")))
        plan = made.story.given(**{name: value}).plan()
        assert (plan.engines, plan.routers, plan.weight_sync) == (
            made.plan.engines,
            made.plan.routers,
            made.plan.weight_sync,
        )
        assert [n for n in plan.notes if n not in made.plan.notes] == [n for n in plan.notes if n.code == "near_miss"]


class TestSpellingIsFree:
    """Dashes for underscores and leading dashes in an argument's name change nothing; two spellings are refused."""

    @given(made(), st.sampled_from(["{}", "--{}", " {} "]), st.booleans())
    def test_law(self, made: Made, frame: str, dashes: bool):
        """Spell every name anew."""
        args = {frame.format(k.replace("_", "-") if dashes else k): v for k, v in made.story.args.items()}
        assert Story(args, made.story.facts, made.story.moe).plan() == made.plan

    @given(made(), st.data())
    def test_twice(self, made: Made, data: st.DataObject):
        """Give one argument under two spellings."""
        name = data.draw(st.sampled_from(sorted(n for n in made.story.args if "_" in n)))
        problems = made.story.given(**{name.replace("_", "-"): made.story.args[name]}).problems()
        assert [(p.code, p.where) for p in problems] == [(Code.EXCLUSIVE, name)]


class TestNothingIsNotGiven:
    """An argument given as None is not given; 0 is."""

    @given(made(), st.lists(st.sampled_from(OURS), max_size=5))
    def test_law(self, made: Made, names: list[str]):
        """Add names of ours with None, and ask for no engines at all."""
        story = made.story.given(**{n: None for n in names if n not in made.story.args})
        assert story.plan() == made.plan
        if "vllm_config" not in story.args and "prefill_num_servers" not in story.args:
            assert story.given(rollout_num_gpus=0).plan().engines == ()


class TestNamespaces:
    """A Namespace with the same arguments gives an equal plan, and one filled up with defaults no other."""

    @given(made())
    def test_law(self, made: Made):
        """Plan for a Namespace where every other option holds its parser's default."""
        filled = {f"vllm_{f.dest}": _default(f.default) for f in DEFAULT_VLLM.flags}
        filled |= {f"router_{f.dest}": _default(f.default) for f in DEFAULT_ROUTER.flags}
        explicit = {k for k, v in made.story.args.items() if k in filled and filled[k] in (v, repr(v))}
        assume(not explicit)
        facts = ModelFacts(made.story.moe)
        assert make_plan(made.story.namespace(), made.story.cluster, models=facts) == made.plan
        namespace = Namespace(**{**filled, **made.story.args})
        found = make_plan(namespace, made.story.cluster, models=facts)
        assert tuple(note for note in found.notes if note.code != "default_replaced") == made.plan.notes
        assert evolve(found, notes=made.plan.notes) == made.plan


def _default(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _leaves(tree: dict[str, object]) -> list[tuple[str, str]]:
    """Return the dotted path and the JSON of every value in a tree that is no mapping with something in it."""
    found = []
    for key, value in tree.items():
        inner = _leaves(value) if isinstance(value, dict) else []
        found += [(f"{key}.{path}", text) for path, text in inner] or [(key, json.dumps(value))]
    return found


class TestCommandLines:
    """A command line with the same arguments, JSON key by key too, gives an equal plan; flags of others pass by."""

    @given(made(forms=("plain", "short")))
    def test_law(self, made: Made):
        """Write every argument as a flag, a switch as --x or --no-x."""
        tokens = ["python", "train.py", "--tensor-model-parallel-size", "4", "--bf16"]
        for name, value in made.story.args.items():
            flag = name.replace("_", "-")
            if isinstance(value, bool) or str(value) in {"true", "False"}:
                on = str(value).lower() == "true"
                switch = DEFAULT_VLLM.get(name.removeprefix("vllm_"))
                assume(on or switch is None or switch.negative)
                tokens.append(f"--{flag}" if on else f"--no-{flag}")
            else:
                assume(isinstance(value, int | str) and str(value) and str(value)[0] != "-")
                tokens.append(f"--{flag}={value}")
        assume(not any(t.startswith("--no-router") for t in tokens))
        args = from_flags(tokens, DEFAULT_VLLM, DEFAULT_ROUTER)
        assert Story(dict(args), made.story.facts, made.story.moe).plan() == made.plan

    @given(made(forms=("plain",)), st.sampled_from([f for f in FREE if f.type == "json"]), JSONS.filter(bool))
    def test_keys(self, made: Made, flag: Flag, tree: dict[str, object]):
        """Give a JSON option key by key, each value as JSON."""
        name = f"vllm_{flag.dest}"
        tokens = [f"--vllm-{flag.flag[2:]}.{path}={text}" for path, text in _leaves(tree)]
        args = from_flags(tokens, DEFAULT_VLLM, DEFAULT_ROUTER)
        assert made.story.given(**args).plan() == made.story.given(**{name: tree}).plan()

    @given(made(forms=("plain",)), st.integers(0, 99), st.integers(0, 99))
    def test_last_wins(self, made: Made, first: int, last: int):
        """Of a repeated flag the last value counts."""
        args = from_flags(["--seed", str(first), "--seed", str(last)], DEFAULT_VLLM, DEFAULT_ROUTER)
        assert made.story.given(**args).plan().engines == made.story.given(seed=last).plan().engines


class TestExclusives:
    """vllm_config, prefill_num_servers and external engines exclude each other, as do the two debug modes."""

    @given(made(), st.sampled_from(["127.0.0.1:1", ["10.0.0.1:8000"]]))
    def test_law(self, made: Made, address: object):
        """Give two of them at once."""
        args = made.story.args
        groups = {"vllm": [{"name": "m", "server_groups": [{"worker_type": "regular", "num_gpus": 1}]}]}
        pairs = [
            {"vllm_config": args.get("vllm_config", groups), "prefill_num_servers": args.get("prefill_num_servers", 1)},
            {"rollout_external_engine_addrs": address, "prefill_num_servers": 1},
            {"debug_rollout_only": True, "debug_train_only": True},
        ]
        assert all(Code.EXCLUSIVE in made.story.given(**pair).codes() for pair in pairs)


class TestTrainOnly:
    """With debug_train_only there is no engine and no router, and a note says so."""

    @given(made(modes=("apart", "colocated")))
    def test_law(self, made: Made):
        """Plan the same request for the trainer alone."""
        plan = made.story.given(debug_train_only=True).plan()
        assert (plan.engines, plan.routers, plan.weight_sync, plan.start_order) == ((), (), (), ())
        assert plan.trainer_slots == made.plan.trainer_slots
        assert any(note.code == "overridden" for note in plan.notes)


class TestRefusalsAreCollected:
    """All offences that intake finds are said at once."""

    WRONG = st.sampled_from(
        [("colocate", "maybe"), ("vllm_port", 1), ("vllm_tp_size", 2), ("rollout_num_gpu", 8), ("router_prefill", "x")]
    )

    @given(made(), st.lists(WRONG, min_size=1, unique=True))
    def test_law(self, made: Made, wrong: list[tuple[str, object]]):
        """Give several wrong arguments and find each in the refusal."""
        problems = made.story.given(**dict(wrong)).problems()
        assert {p.where for p in problems} == {name for name, _ in wrong}


class TestOneNameForOneOption:
    """An option of the router has one value: a second name for it is refused, and vLLM's options have no such names."""

    @given(made(), st.sampled_from(["policy", "queue_size"]), st.sampled_from(["router_router_", "vllm_router_"]))
    def test_law(self, made: Made, dest: str, prefix: str):
        """Give an option by two names at once, and one of vLLM's by the launcher's prefix."""
        value = {"policy": "random"}.get(dest, 7)
        story = made.story.given(vllm_router_policy=None, router_router_policy=None)
        assert story.given(**{f"router_{dest}": value, f"{prefix}{dest}": value}).problems()
        (problem,) = made.story.given(vllm_router_max_model_len=5).problems()
        assert (problem.code, problem.where) == (Code.UNKNOWN_ARGUMENT, "vllm_router_max_model_len")
