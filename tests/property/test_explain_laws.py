"""Laws of explanations: nothing of a plan is left out, nothing is invented, and a narrower question says less."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from tests.oracles.slots import slots_of
from tests.strategies.requests import Made, made

from vime_core import LaunchPlan
from vime_core.explain import About, Question, explain


def things(plan: LaunchPlan) -> Counter:
    """Return every flag, entry and port of a plan with its reason: place, first word or name, source, sentence."""
    found: Counter = Counter()
    for part in (*(p for e in plan.engines for p in e.processes), *plan.routers):
        for arg in part.args:
            names = [arg.tokens[0], *(t for t in arg.tokens[1:] if t.startswith("--"))]
            found.update((part.id, name, arg.reason.source, arg.reason.text) for name in names)
        for thing in (*getattr(part, "env", ()), *part.ports):
            found[part.id, thing.name, thing.reason.source, thing.reason.text] += 1
    return found


class TestNothingLeftOut:
    """Every flag, environment entry and port of every process is explained exactly once, with its own reason."""

    @given(made())
    def test_law(self, made: Made):
        """Count what the plan holds and what is explained."""
        kinds = {About.FLAG, About.ENV, About.PORT}
        lines = [
            line for line in explain(made.plan) if line.about in kinds and not line.where.startswith("weight_sync.")
        ]
        assert Counter((line.where, line.what, line.source, line.sentence) for line in lines) == things(made.plan)


class TestSlotsAsTheyAre:
    """The slots that are named for a process are those of its GPUs, counted over the facts."""

    @given(made())
    def test_law(self, made: Made):
        """Find the GPUs of a process in the facts."""
        slots = [(host, gpu) for host, _, gpu in slots_of(made.story.facts)]
        at = {(p.id): [slots.index((p.node, g)) for g in p.gpus] for e in made.plan.engines for p in e.processes}
        for line in explain(made.plan, Question(gpus=True)):
            first, last = at[line.where][0], at[line.where][-1]
            named = f"slots {first}-{last} of {len(slots)}" if last > first else f"slots {first} of {len(slots)}"
            assert line.sentence.startswith(named)


class TestNarrower:
    """Asking about one engine, or one kind of thing, gives lines of the whole explanation in the same order."""

    @given(made(), st.data())
    def test_law(self, made: Made, data: st.DataObject):
        """Narrow the question to one engine, and again to one of its flags."""
        everything = explain(made.plan)
        engine = data.draw(st.sampled_from(made.plan.engines))
        own = explain(made.plan, Question(engine=engine.id))
        places = {engine.id, *(p.id for p in engine.processes)}
        assert own == tuple(line for line in everything if line.where in places)
        flag = data.draw(st.sampled_from([line.what for line in own if line.about is About.FLAG]))
        found = explain(made.plan, Question(engine=engine.id, flag=flag))
        assert {line.what for line in found if line.about is About.FLAG} == {flag}
        assert [line for line in own if line in found] == list(found)


class TestNotesAreTold:
    """Every note of a plan is in its explanation."""

    @given(made())
    def test_law(self, made: Made):
        """Compare the texts."""
        told = {(line.value, line.what, line.sentence) for line in explain(made.plan) if line.about is About.NOTE}
        assert told == {(note.code, note.where, note.text) for note in made.plan.notes}
