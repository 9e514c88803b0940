"""Laws of refusals: nothing but PlanRefused ever comes out of the core, and every refusal says all it should."""

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from time import monotonic

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.strategies.clusters import cluster_facts
from tests.strategies.effort import effort
from tests.strategies.junk import TEXTS, anything, damaged
from tests.strategies.requests import Made, Story, made, stories

from vime_core import DEFAULT_ROUTER, DEFAULT_VLLM, Cluster, PlanRefused, make_plan, parse, problems, render
from vime_core.flags import from_flags
from vime_core.names import LAUNCHER, ROLLOUT_ELSEWHERE, TRAINER

PREFIXES = ("vllm_", "router_", "rollout_", "sglang_", "")
NAMES = st.one_of(
    st.sampled_from([*TRAINER, *LAUNCHER]),
    st.sampled_from([f"vllm_{f.dest}" for f in DEFAULT_VLLM.flags]),
    st.sampled_from([f"router_{f.dest}" for f in DEFAULT_ROUTER.flags]),
    st.sampled_from(sorted(ROLLOUT_ELSEWHERE)),
    st.builds("{}{}".format, st.sampled_from(PREFIXES), TEXTS),
)
"""Names of every kind of argument, and names that are none."""


def refused(call) -> tuple:
    """Return the problems that ``call`` is refused for, () when it is not; anything else it raises is a fault."""
    try:
        call()
    except PlanRefused as refusal:
        return refusal.problems or ("a refusal without a problem",)
    return ()


TRIED: Counter[str] = Counter()
"""How many requests were tried, and how many of them were refused."""


@pytest.fixture(scope="class")
def report(request: pytest.FixtureRequest):
    """Say at the end how many requests were tried, and in which time; the ci profile keeps quiet."""
    began = monotonic()
    yield
    if settings.default.max_examples > settings.get_profile("ci").max_examples:
        text = f"{TRIED['tried']} requests tried in {monotonic() - began:.0f} s, {TRIED['refused']} of them refused"
        with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
            sys.stdout.write(f"\n{text}\n")


@pytest.mark.usefixtures("report")
class TestOnlyRefusals:
    """Whatever is given under whatever names, a plan is made and lawful, or PlanRefused is raised; nothing else."""

    def tried(self, call: Callable[[], object]) -> None:
        """Plan, and count what came of it."""
        TRIED["tried"] += 1
        TRIED["refused"] += bool(refused(call))

    @effort(6)
    @given(stories(), st.dictionaries(NAMES, anything(), min_size=1, max_size=3), st.booleans())
    def test_law(self, story: Story, junk: dict[str, object], namespace: bool):
        """Add junk to good arguments, as a mapping or as a Namespace."""
        args = {**story.args, **junk}
        given = Namespace(**args) if namespace else args
        self.tried(lambda: make_plan(given, story.cluster))

    @effort(6)
    @given(damaged(stories().map(lambda s: s.args)))
    def test_damaged(self, args: object):
        """Put junk deep into good arguments, the vllm_config included."""
        self.tried(lambda: make_plan(args, Cluster.uniform(2, 8)))

    @given(anything())
    @example(None)
    @example("colocate")
    @example(Namespace)
    @example([("colocate", True)])
    def test_no_arguments_at_all(self, args: object):
        """Give anything in place of the arguments."""
        self.tried(lambda: make_plan(args, Cluster.uniform(1, 8)))


class TestClusterFactsAreRefused:
    """Whatever is given as cluster facts, a cluster is understood or PlanRefused is raised; nothing else."""

    @effort(6)
    @given(damaged(cluster_facts()) | anything())
    def test_law(self, facts: object):
        """Put junk deep into good facts; what is understood can be planned for or refused."""
        if not refused(lambda: Cluster.parse(facts)):
            refused(lambda: make_plan({"hf_checkpoint": "m", "colocate": True}, Cluster.parse(facts)))

    @effort(2)
    @given(
        st.builds("{}{}{}".format, st.integers(0, 10**12) | TEXTS, st.sampled_from(["x", "X", "*", ""]), st.integers())
    )
    @example("1x99999999999999")
    @example("16777215x4096")
    def test_short_form(self, text: str):
        """A size that no cluster has is refused before anything is made of it."""
        refused(lambda: Cluster.parse(text))


class TestCommandLinesAreRefused:
    """Whatever stands on a command line, it is understood or PlanRefused is raised; nothing else."""

    FLAGS = NAMES.map(lambda name: "--" + name.replace("_", "-"))

    @effort(6)
    @given(
        st.lists(FLAGS | TEXTS | st.builds("{}={}".format, FLAGS, TEXTS) | st.sampled_from(["8", "true"]), max_size=6)
    )
    def test_law(self, tokens: list[str]):
        """Plan what was understood."""
        start = ["--hf-checkpoint", "m", "--colocate"]
        args: dict[str, object] = {}
        if not refused(lambda: args.update(from_flags([*start, *tokens], DEFAULT_VLLM, DEFAULT_ROUTER))):
            refused(lambda: make_plan(args, Cluster.uniform(1, 8)))


class TestPlanTextsAreRefused:
    """Whatever is given as the text of a plan, a sound plan is read or PlanRefused is raised; nothing else."""

    @effort(2)
    @given(st.text() | TEXTS | st.sampled_from(["[" * 5000, '{"format": 1}', "[]", "1", "NaN", '"\\ud800"']))
    def test_law(self, text: str):
        """Give any text."""
        assert refused(lambda: parse(text))

    @effort(2)
    @given(made(), st.data())
    def test_cut(self, made: Made, data: st.DataObject):
        """Cut a rendered plan short, or leave a piece out."""
        text = render(made.plan)
        start = data.draw(st.integers(0, len(text) - 1))
        assert refused(lambda: parse(text[:start] + text[data.draw(st.integers(start + 1, len(text))) :]))


class TestRefusalsSayAll:
    """A refusal is one line that starts with its code and says where, what was found, what is allowed, and a hint."""

    @effort(4)
    @given(stories(), st.dictionaries(NAMES, anything(), min_size=1, max_size=3), damaged(cluster_facts()))
    def test_law(self, story: Story, junk: dict[str, object], facts: object):
        """Collect refusals of arguments and of facts."""
        found = refused(lambda: make_plan({**story.args, **junk}, story.cluster))
        for problem in (*found, *refused(lambda: Cluster.parse(facts))):
            text = str(problem)
            assert text.startswith(problem.code.id + " ")
            assert text.isprintable()
            assert all(part.strip() for part in (problem.where, problem.found, problem.allowed, problem.hint))


class TestRefusalsAreSaidOnce:
    """No refusal is said twice, however many groups or engines share the offence."""

    @effort(2)
    @given(stories(), st.dictionaries(NAMES, anything(), min_size=1, max_size=3))
    def test_law(self, story: Story, junk: dict[str, object]):
        """Compare the problems of a request with themselves."""
        found = refused(lambda: make_plan({**story.args, **junk}, story.cluster))
        assert len(set(found)) == len(found)


class TestArgumentsAreNotTouched:
    """Planning changes neither the arguments nor the facts it was given."""

    @given(made())
    def test_law(self, made: Made):
        """Compare both with copies made before."""
        before = deepcopy((made.story.args, made.story.facts))
        assert not refused(made.story.plan)
        assert (made.story.args, made.story.facts) == before


class TestAcceptedPlansAreLawful:
    """An accepted plan breaks none of the laws that a finished plan alone can show."""

    @given(made())
    def test_law(self, made: Made):
        """Ask the checker, which derives them again."""
        assert problems(made.plan) == ()
