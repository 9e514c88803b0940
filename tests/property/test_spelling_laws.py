"""Laws of the catalogue: a value becomes tokens, and the tokens say that value again, to us and to argparse."""

import json
from collections.abc import Mapping

from hypothesis import example, given
from hypothesis import strategies as st
from tests.oracles.parser import parsed
from tests.strategies.effort import effort
from tests.strategies.junk import anything
from tests.strategies.options import EVERY, option, options_with_values, values_of

from vime_core import DEFAULT_VLLM, Problem
from vime_core.vllm.catalogue import Flag, read, spell

Named = tuple[str, str]


def said(flag: Flag, value: object) -> object:
    """Return what ``read`` should find: a truth, or the texts of the value."""
    if flag.valueless:
        return str(value).lower() == "true"
    listed = value if isinstance(value, list) else [value]
    return tuple(v if not isinstance(v, Mapping) else json.dumps(v, sort_keys=True) for v in map(_text, listed))


def _text(value: object) -> object:
    if isinstance(value, Mapping):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


class TestSpellThenRead:
    """Spelling a value and reading the tokens gives the value back, for every option of vLLM and of the router."""

    @effort(4)
    @given(options_with_values())
    def test_law(self, drawn: tuple[Named, object]):
        """A switch that is off by default and turned off again needs no tokens."""
        (catalogue, flag), value = option(drawn[0]), drawn[1]
        tokens = spell(flag, value, "here")
        assert not isinstance(tokens, Problem)
        found = read(catalogue, tokens).get(flag.dest)
        if tokens or not flag.valueless:
            assert found == said(flag, value)
        else:
            assert str(value).lower() == str(flag.default).lower() == str(flag.action == "store_false").lower()

    @given(st.data())
    def test_every_option(self, data: st.DataObject):
        """No option of either program is left out, whatever the luck of the draw."""
        for catalogue, flag in map(option, EVERY):
            value = data.draw(values_of(flag))
            tokens = spell(flag, value, "here")
            assert not isinstance(tokens, Problem)
            assert not tokens or read(catalogue, tokens)[flag.dest] == said(flag, value)

    test_every_option = effort(0.1)(test_every_option)


class TestSpellForArgparse:
    """Spelt tokens mean the same to a real argparse parser with the release's options."""

    @effort(4)
    @given(options_with_values())
    def test_law(self, drawn: tuple[Named, object]):
        """Parse with argparse and compare as texts, JSON as values."""
        (catalogue, flag), value = option(drawn[0]), drawn[1]
        tokens = spell(flag, value, "here")
        assert not isinstance(tokens, Problem)
        found = parsed(catalogue, tokens)
        assert set(found) <= {flag.dest}
        if not tokens:
            return
        got, want = found[flag.dest], said(flag, value)
        if flag.valueless:
            assert got is want
        elif flag.type in {"int", "float"}:
            assert (got if isinstance(got, list) else [got]) == [float(w) for w in want]
        else:
            flat = [t for g in got for t in (g if isinstance(g, list) else [g])] if isinstance(got, list) else [got]
            assert tuple(flat) == want


class TestJsonSurvives:
    """A mapping given to a JSON option arrives as that mapping; a text arrives letter for letter."""

    @effort(2)
    @given(st.sampled_from([f.dest for f in DEFAULT_VLLM.flags if f.type == "json"]), st.data())
    def test_law(self, dest: str, data: st.DataObject):
        """Read the JSON back, or compare the text."""
        flag = DEFAULT_VLLM.get(dest)
        value = data.draw(values_of(flag))
        (text,) = read(DEFAULT_VLLM, spell(flag, value, "here"))[flag.dest]
        assert text == value if isinstance(value, str) else json.loads(text) == value


class TestSpellNeverRaises:
    """Any value at all is spelt or refused with its place; whatever is spelt can be read back."""

    @effort(4)
    @given(st.sampled_from(EVERY), anything())
    @example(("router", "kv_event_source"), ["--port"])
    @example(("vllm", "tokenizer"), "\ud800")
    def test_law(self, name: Named, value: object):
        """Give rubbish of every kind."""
        catalogue, flag = option(name)
        tokens = spell(flag, value, "here")
        if isinstance(tokens, Problem):
            assert tokens.where == "here"
            return
        assert set(read(catalogue, tokens)) <= {flag.dest}
        assert set(parsed(catalogue, tokens)) <= {flag.dest}
        assert all(t.encode() and "\0" not in t for t in tokens if t)
