"""Laws of the plan's text: equal inputs give equal bytes, the text says the whole plan, and no edit passes unseen."""

import json
import subprocess
import sys

from attrs import evolve, fields_dict, has
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies.effort import effort
from tests.strategies.requests import Made, made

from vime_core import LaunchPlan, PlanRefused, parse, problems, render
from vime_core.plan import Reason, Source


def read(text: str) -> LaunchPlan | None:
    """Return the plan of a text, or None when it is refused."""
    try:
        return parse(text)
    except PlanRefused:
        return None


class TestSameInputsSameBytes:
    """The same arguments and facts give an equal plan and the same text, byte for byte."""

    @given(made())
    def test_law(self, made: Made):
        """Plan again from copies."""
        again = made.story.copy().plan()
        assert again == made.plan
        assert render(again).encode("utf-8") == render(made.plan).encode("utf-8")

    def test_in_another_process(self):
        """The text does not depend on the order in which another process' hashes fall."""
        source = (
            "from vime_core import Cluster, make_plan, render\n"
            "args = dict(hf_checkpoint='m', colocate=True, actor_num_nodes=2, vllm_data_parallel_size=2,"
            " rollout_num_gpus_per_engine=16, vllm_max_num_seqs=4, vllm_hf_overrides=dict(b=1, a=2))\n"
            "print(render(make_plan(args, Cluster.uniform(2, 8, 'h100'))))\n"
        )
        texts = {
            subprocess.run(
                [sys.executable, "-c", source],
                env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
                capture_output=True,
                check=True,
            ).stdout
            for seed in ("1", "2")
        }
        assert len(texts) == 1


class TestReadsBack:
    """Reading a plan's text gives the plan again, however the text is spaced, and its text is the same again."""

    @given(made(), st.sampled_from([None, 1, 4]))
    def test_law(self, made: Made, indent: int | None):
        """Write, read, compare and write again."""
        again = parse(render(made.plan, indent))
        assert again == made.plan
        assert render(again) == render(made.plan)
        assert again.digest == made.plan.digest


class TestEditsAreSeen:
    """A text with one character changed, left out or put in is refused or says the same plan."""

    @effort(8)
    @given(made(), st.data())
    def test_law(self, made: Made, data: st.DataObject):
        """Edit any place of the text."""
        text = render(made.plan)
        for _ in range(3):
            at = data.draw(st.integers(0, len(text) - 1))
            new = data.draw(st.sampled_from([*'0123456789"[]{},:.-+eE atrunls\\/\n', "\ud800", "é", ""]))
            keep = data.draw(st.booleans())
            assert read(text[:at] + new + text[at + keep :]) in (None, made.plan)

    @effort(2)
    @given(made(), st.data())
    def test_values(self, made: Made, data: st.DataObject):
        """Change any one value of the JSON, or drop, add or double an item; only equal plans are read."""
        value = json.loads(render(made.plan))
        place, key = value, data.draw(st.sampled_from(sorted(value)))
        while isinstance(place[key], dict | list) and place[key]:
            place = place[key]
            key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        place[key] = data.draw(st.sampled_from([None, True, 0, 1, 7, 1.5, "x", "", [], {}, [0], {"a": 1}]))
        assert read(json.dumps(value)) in (None, made.plan)


class TestReasonsNeverDecide:
    """Why something is there decides nothing: with other reasons a plan is just as lawful and says the same."""

    @given(made(), st.sampled_from(Source), st.text(max_size=5))
    def test_law(self, made: Made, source: Source, text: str):
        """Replace every reason of the plan by one and the same."""
        other = _with(made.plan, Reason(source, text))
        assert problems(other) == problems(made.plan) == ()
        assert _without_reasons(other) == _without_reasons(made.plan)
        assert parse(render(other)) == other


def _with(value: object, reason: Reason) -> object:
    """Return a value with every reason in it replaced."""
    if isinstance(value, Reason):
        return reason
    if isinstance(value, tuple):
        return tuple(_with(v, reason) for v in value)
    if has(type(value)):
        changed = {n: _with(getattr(value, n), reason) for n, f in fields_dict(type(value)).items() if f.init}
        return evolve(value, **changed)
    return value


def _without_reasons(plan: object) -> object:
    value = json.loads(render(plan))
    for owner in (*(p for e in value["engines"] for p in e["processes"]), *value["routers"]):
        del owner["why"]
    return {k: v for k, v in value.items() if k not in {"digest", "reasons"}}


class TestDigests:
    """Plans have equal digests exactly when they are equal, and the digest is in the text."""

    @given(made(), made())
    def test_law(self, one: Made, two: Made):
        """Compare two plans."""
        assert (one.plan.digest == two.plan.digest) == (one.plan == two.plan)
        assert json.loads(render(one.plan))["digest"] == one.plan.digest
        assert hash(one.plan) == hash(one.story.copy().plan())


class TestNamesThatOthersRead:
    """The text holds the names that other programs rely on, with values of the kinds they expect."""

    PROCESS = ("node_rank", "headless", "node", "address", "gpus", "argv", "env", "ports")
    ENGINE = (
        "id",
        "model",
        "group",
        "index",
        "role",
        "gpus_per_engine",
        "nnodes",
        "tp",
        "pp",
        "dp",
        "pcp",
        "ep",
        "seed",
        "url",
    )
    ROUTER = ("model", "mode", "node", "url", "worker_urls", "prefill_urls", "decode_urls", "ports")

    @given(made())
    def test_law(self, made: Made):
        """Compare every named value with the plan's own."""
        value = json.loads(render(made.plan))
        assert value["vllm_version"] == made.plan.vllm_version
        for engine, shown in zip(made.plan.engines, value["engines"], strict=True):
            have = {n: getattr(engine, n) for n in self.ENGINE} | {"role": engine.role.value}
            assert {n: shown[n] for n in self.ENGINE} == have
            for process, told in zip(engine.processes, shown["processes"], strict=True):
                assert set(told) >= set(self.PROCESS)
                assert (told["gpus"], told["argv"]) == (list(process.gpus), list(process.argv))
                assert told["env"]["set"] == {v.name: v.value for v in process.env if v.value is not None}
                assert told["env"]["unset"] == [v.name for v in process.env if v.value is None]
                assert told["ports"] == {u.name: [u.interval.start, u.interval.count] for u in process.ports}
        assert all(set(router) >= set(self.ROUTER) for router in value["routers"])
        members = [m for sync in value["weight_sync"] for m in sync["engines"]]
        assert all({"engine", "transport", "rank_offset", "span", "trainer_ranks"} <= set(m) for m in members)
        assert all(set(note) == {"code", "where", "text"} for note in value["notes"])
