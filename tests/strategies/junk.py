"""Anything that JSON, YAML or a program can hand over, sensible or not."""

from hypothesis import strategies as st


def nested(depth: int) -> object:
    """Return a list in a list in a list ..., deeper than Python prints."""
    value: object = []
    for _ in range(depth):
        value = [value]
    return value


def power(digits: int) -> int:
    """Return a whole number of many digits; Python refuses to print more than 4300, YAML can hold them as 0x..."""
    return 10**digits


ODD = ("", " ", "\0", "\n", "\ud800", "--", "-1", "--port", "{", "[1", "nan", "\u0661", "0x10", "1_0")
TEXTS = st.text(max_size=8) | st.sampled_from(ODD)
NUMBERS = st.integers(-3, 40) | st.integers() | st.sampled_from([2**31, 2**63]) | st.just(5000).map(power)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    NUMBERS,
    st.floats(),
    TEXTS,
    st.binary(max_size=3),
    st.sampled_from([object(), Ellipsis, 1j]),
    st.just(1500).map(nested),
)
JUNK = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | NUMBERS, inner, max_size=3),
    max_leaves=6,
)


def anything() -> st.SearchStrategy[object]:
    """Return values of every kind, those that no option takes included."""
    return JUNK


def draw_damage(draw: st.DrawFn, tree: object) -> object:
    """Draw a copy of ``tree`` with junk in one random place: a value replaced, taken away, renamed or added."""
    if not isinstance(tree, dict | list) or not tree or draw(st.integers(0, 3)) == 3:
        return draw(JUNK)
    if isinstance(tree, list):
        at = draw(st.integers(0, len(tree) - 1))
        rest = [tree[at]] if draw(st.booleans()) else []
        return [*tree[:at], draw_damage(draw, tree[at]), *rest, *tree[at + 1 :]]
    key = list(tree)[draw(st.integers(0, len(tree) - 1))]
    what = draw(st.sampled_from(["deeper", "deeper", "deeper", "drop", "rename", "add"]))
    rest = {k: v for k, v in tree.items() if k != key}
    if what == "deeper":
        return {**rest, key: draw_damage(draw, tree[key])}
    if what == "rename":
        return {**rest, draw(TEXTS | NUMBERS): tree[key]}
    return {**tree, draw(TEXTS | NUMBERS): draw(JUNK)} if what == "add" else rest


@st.composite
def damaged(draw: st.DrawFn, trees: st.SearchStrategy[object], most: int = 3) -> object:
    """Return a tree of ``trees`` with junk in up to ``most`` places."""
    tree = draw(trees)
    for _ in range(draw(st.integers(1, most))):
        tree = draw_damage(draw, tree)
    return tree
