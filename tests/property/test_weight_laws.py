"""Laws of weight updates: who takes part, by which transport, as which ranks."""

import json

from hypothesis import assume, given
from hypothesis import strategies as st
from tests.oracles.layout import Expected, expected, shared, trainer_size
from tests.oracles.slots import slots_of
from tests.strategies.effort import effort
from tests.strategies.requests import Made, made

from vime_core import DEFAULT_VLLM, Code
from vime_core.plan import WeightMember
from vime_core.vllm.catalogue import read


def members(made: Made) -> list[tuple[WeightMember, Expected]]:
    """Return every engine's part in a weight sync, with what the oracle expects of that engine."""
    by_id = dict(zip([e.id for e in made.plan.engines], expected(made.story.args, made.story.facts), strict=True))
    return [(m, by_id[m.engine]) for sync in made.plan.weight_sync for m in sync.engines]


class TestWhoGetsWeights:
    """Every engine of a model that is trained takes part in that model's one sync; without a trainer nobody does."""

    @given(made())
    def test_law(self, made: Made):
        """List the engines by model, in order."""
        wanted: dict[str, list[str]] = {}
        if trainer_size(made.story.args):
            for engine, want in zip(made.plan.engines, expected(made.story.args, made.story.facts), strict=True):
                if want.group.updates:
                    wanted.setdefault(engine.model, []).append(engine.id)
        assert [(s.model, [m.engine for m in s.engines]) for s in made.plan.weight_sync] == list(wanted.items())


class TestTransports:
    """Engines on the trainer's slots get their weights by IPC, all others by NCCL."""

    @given(made(modes=("apart", "colocated")))
    def test_law(self, made: Made):
        """Derive from the slots who is colocated."""
        for member, want in members(made):
            together = want.first < shared(made.story.args)
            assert member.transport.value == ("ipc" if together else "nccl")


class TestTrainerRanks:
    """An IPC engine opens the handles of the trainer ranks on its very slots; an NCCL engine of none."""

    @given(made(modes=("apart", "colocated")))
    def test_law(self, made: Made):
        """Number the trainer's slots and find the engine's among them."""
        numbered = slots_of(made.story.facts)[: shared(made.story.args)]
        for member, want in members(made):
            assert list(member.trainer_ranks) == [numbered.index(slot) for slot in want.slots if slot in numbered]
            assert len(member.trainer_ranks) in {0, want.group.size}


class TestWorldIsPartitioned:
    """The world is the sender and every GPU that joins; the spans of those engines cover ranks 1 to world - 1 once."""

    @given(made(modes=("apart", "colocated")))
    def test_law(self, made: Made):
        """List every rank of every engine that joins."""
        for sync in made.plan.weight_sync:
            joining = [m for m in sync.engines if m.transport.value != "ipc"]
            ranks = [m.rank_offset + i for m in joining for i in range(m.span)]
            assert sorted(ranks) == list(range(1, sync.world_size))
            assert all(m.rank_offset is None for m in sync.engines if m not in joining)


class TestSpansAreGpus:
    """An engine's span is the number of its GPUs, data-parallel replicas and all its hosts included."""

    @given(made(modes=("apart", "colocated")))
    def test_law(self, made: Made):
        """Count the slots that the oracle dealt out."""
        for member, want in members(made):
            assert member.span == len(want.slots)


class TestMeetingPoint:
    """A weight group meets on the host of the trainer's first slot, at a port of its own there."""

    @given(made(modes=("apart", "colocated")))
    def test_law(self, made: Made):
        """Compare address and ports with the facts."""
        points = [(s.address, s.port) for s in made.plan.weight_sync]
        assert {address for address, _ in points} <= {slots_of(made.story.facts)[0][1]}
        assert len(set(points)) == len(points)


class TestFewCalls:
    """A sync makes the same small number of control calls to every engine, and has the trainer's own time limit."""

    @given(made(modes=("apart", "colocated")))
    def test_law(self, made: Made):
        """Compare with the argument."""
        for sync in made.plan.weight_sync:
            assert 0 < sync.calls < 10
            assert sync.timeout == float(made.story.args.get("vllm_weight_transfer_timeout_sec", 900))


class TestBackendIsTold:
    """Trained engines are started with the backend of their transport, and colocated ones with the worker extension."""

    @given(made())
    def test_law(self, made: Made):
        """Read both options off the command lines."""
        parts = {m.engine: m.transport.value for m, _ in members(made)}
        for engine, want in zip(made.plan.engines, expected(made.story.args, made.story.facts), strict=True):
            for process in engine.processes:
                found = read(DEFAULT_VLLM, process.argv[3:])
                backend = found.get("weight_transfer_config")
                assert (backend and json.loads(backend[0])) == (
                    None if engine.id not in parts else {"backend": parts[engine.id]}
                )
                if "worker_extension_cls" not in want.group.options:
                    assert ("worker_extension_cls" in found) == (parts.get(engine.id) == "ipc")


class TestGivenBackend:
    """A backend that cannot work where the engines are is refused; any other is passed on as given."""

    @effort(2)
    @given(
        made(modes=("apart", "colocated")),
        st.sampled_from(["ipc", "nccl", "other"]),
        st.booleans(),
    )
    def test_law(self, made: Made, backend: str, text: bool):
        """Give one backend for all groups, as a mapping or a text."""
        assume(made.plan.weight_sync)
        value = json.dumps({"backend": backend}) if text else {"backend": backend}
        story = made.story.given(vllm_weight_transfer_config=value)
        transports = {m.transport.value for m, _ in members(made)}
        wrong = {"ipc": "nccl", "nccl": "ipc"}.get(backend)
        if wrong in transports:
            assert story.codes() == {Code.WEIGHT_TRANSPORT}
            return
        found = {m.transport.value for s in story.plan().weight_sync for m in s.engines}
        assert found == {"user" if backend == "other" else backend}
        for engine in story.plan().engines:
            for process in engine.processes:
                (told,) = read(DEFAULT_VLLM, process.argv[3:])["weight_transfer_config"]
                assert json.loads(told) == {"backend": backend}
