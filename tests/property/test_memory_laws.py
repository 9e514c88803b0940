"""Laws of the memory estimate: what splitting a model over more GPUs does to the bytes on one of them."""

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from vime_core.memory import cache_per_token, stages, weights_per_rank
from vime_core.sizes import Latent, ModelSize
from vime_core.topology import Shape
from vime_core.widths import Widths

COUNTS = st.integers(1, 200)
RANKS = st.integers(1, 16)


@st.composite
def model_sizes(draw: st.DrawFn) -> ModelSize:
    """Return a model of any proportions, sensible or not."""
    width = st.sampled_from((2.0, 1.0, 0.5))
    layers, experts = draw(st.integers(1, 60)), draw(st.sampled_from((0, 0, 1, 7, 64, 128)))
    latent = st.none() | st.builds(Latent, COUNTS, st.none() | COUNTS, COUNTS, COUNTS, COUNTS)
    return ModelSize(
        *(draw(COUNTS), layers, draw(COUNTS), draw(COUNTS), draw(COUNTS), draw(COUNTS), draw(COUNTS)),
        experts=experts,
        moe_intermediate=draw(COUNTS),
        shared_intermediate=draw(st.integers(0, 200)),
        dense_layers=draw(st.integers(0, layers)) if experts else layers,
        tied=draw(st.booleans()),
        latent=draw(latent),
        widths=Widths(2.0, draw(width), draw(width), draw(width), draw(width)),
    )


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Return the shape of an engine, with expert parallelism or without."""
    tp, pp, dp, pcp = draw(RANKS), draw(RANKS), draw(st.integers(1, 4)), draw(st.integers(1, 2))
    return Shape(tp * pp * dp * pcp, 1, tp, pp, dp, pcp, tp * dp * pcp if draw(st.booleans()) else 1)


def wider(shape: Shape, tp: int) -> Shape:
    """Return the shape with another tensor parallel size."""
    ranks = tp * shape.dp * shape.pcp
    return evolve(shape, gpus=ranks * shape.pp, tp=tp, ep=ranks if shape.ep > 1 else 1)


class TestMoreTensorRanksHoldLess:
    """A rank never holds more bytes of weights, or of a token's cache, when its engine has more tensor ranks."""

    @given(model_sizes(), shapes(), st.integers(1, 16))
    def test_law(self, size: ModelSize, shape: Shape, more: int):
        """Add ranks and compare, expert parallelism staying on or off."""
        larger = wider(shape, shape.tp + more)
        assert weights_per_rank(size, larger).total <= weights_per_rank(size, shape).total
        assert cache_per_token(size, larger, 2.0) <= cache_per_token(size, shape, 2.0)


class TestNoWeightIsLost:
    """All ranks of an engine together hold at least every byte of the model: splitting copies, and never drops."""

    @given(model_sizes(), shapes())
    def test_law(self, size: ModelSize, shape: Shape):
        """Compare the fullest rank, times the number of ranks, with one GPU that holds everything."""
        alone = weights_per_rank(size, Shape(1, 1, 1, 1, 1, 1, 1))
        assert weights_per_rank(size, shape).total * shape.gpus >= alone.total


class TestOneGpuHoldsTheModel:
    """With all sizes 1 and one width for all, the weights are that width times the model's parameters."""

    @given(model_sizes(), st.sampled_from((0.5, 1.0, 2.0, 4.0)))
    def test_law(self, size: ModelSize, width: float):
        """Sum the parts of one rank, and count the parameters apart from them."""
        alike = evolve(size, widths=Widths(width, width, width, width, width))
        assert weights_per_rank(alike, Shape(1, 1, 1, 1, 1, 1, 1)).total == width * size.parameters


class TestExpertParallelismSparesNothing:
    """Dealing whole experts never puts less on the fullest rank than cutting each of them, where widths divide.

    Equal it is when the experts divide by the ranks too: expert parallelism alone frees no memory.
    """

    @given(model_sizes(), shapes())
    def test_law(self, size: ModelSize, shape: Shape):
        """Plan the same ranks with expert parallelism off and on."""
        ranks = shape.tp * shape.dp * shape.pcp
        even = evolve(size, moe_intermediate=size.moe_intermediate * ranks)
        cut, dealt = (weights_per_rank(even, evolve(shape, ep=ep)) for ep in (1, ranks))
        assert cut.total <= dealt.total
        if size.experts % ranks == 0:
            assert cut == dealt


class TestStagesPartitionTheLayers:
    """Pipeline stages hold all layers between them, no two differing by more than one layer."""

    @given(st.integers(1, 500), RANKS)
    def test_law(self, layers: int, pp: int):
        """Sum the stages, and compare the largest with the smallest."""
        found = stages(layers, pp)
        assert len(found) == pp
        assert sum(found) == layers
        assert max(found) - min(found) <= 1
        assert max(found) == -(-layers // pp)
