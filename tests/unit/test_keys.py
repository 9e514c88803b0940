"""Where the engines' API key comes from, and which processes are told it."""

import argparse

import pytest

from vime_adapters.cli.keys import add_key, use_key
from vime_adapters.vllm.keys import check_key, engine_key, key_env
from vime_core import PlanRefused

ENGINE = ("/bin/vime-vllm-cpu", "serve", "m")
REGULAR = ("vllm-router", "--port", "1")
PD = (*REGULAR, "--vllm-pd-disaggregation")


@pytest.fixture(autouse=True)
def keyless(monkeypatch):
    """Start without a key."""
    monkeypatch.setenv("VLLM_API_KEY", "")
    monkeypatch.delenv("VIME_API_KEY_FILE", raising=False)


def test_no_key():
    """Without a key nobody is told one."""
    assert engine_key() is None
    assert [key_env(argv) for argv in (ENGINE, REGULAR, PD)] == [{}, {}, {}]
    check_key()


def test_from_the_environment(monkeypatch):
    """Engines get it under vLLM's name, a prefill/decode router under its own, a regular router not at all."""
    monkeypatch.setenv("VLLM_API_KEY", "abc")
    assert engine_key() == "abc"
    assert [key_env(argv) for argv in (ENGINE, REGULAR, PD)] == [
        {"VLLM_API_KEY": "abc"},
        {},
        {"OPENAI_API_KEY": "abc"},
    ]


def test_from_a_file(monkeypatch, tmp_path):
    """A file holds the key, white space around it aside; the environment's own key counts first."""
    (tmp_path / "key").write_text("  abc\n")
    monkeypatch.setenv("VIME_API_KEY_FILE", str(tmp_path / "key"))
    assert engine_key() == "abc"
    monkeypatch.setenv("VLLM_API_KEY", "def")
    assert engine_key() == "def"


@pytest.mark.parametrize("text", [None, "", " \n", b"\xff\xfe"])
def test_no_key_in_the_file(monkeypatch, tmp_path, text):
    """A file that is not there, holds nothing or no text is refused by name before anything is started."""
    path = tmp_path / "key"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    monkeypatch.setenv("VIME_API_KEY_FILE", str(path))
    with pytest.raises(PlanRefused, match=r"VIME102 bad value @ VIME_API_KEY_FILE: found .*key"):
        check_key()


def parsed(*words: str) -> argparse.Namespace:
    """Return the options of a command line."""
    parser = argparse.ArgumentParser()
    add_key(parser)
    return parser.parse_args(words)


def test_the_command_points_to_it(monkeypatch, tmp_path):
    """--api-key-env names another variable, --api-key-file a file, which wins over a variable that is set."""
    monkeypatch.setenv("MINE", "abc")
    use_key(parsed("--api-key-env", "MINE"))
    assert engine_key() == "abc"
    (tmp_path / "key").write_text("def")
    use_key(parsed("--api-key-file", str(tmp_path / "key")))
    assert engine_key() == "def"
    use_key(parsed())
    assert engine_key() == "def"


def test_a_variable_that_is_not_set():
    """--api-key-env with a variable that is not set is refused, and never taken for no key."""
    with pytest.raises(PlanRefused, match="--api-key-env: found NOT_THERE"):
        use_key(parsed("--api-key-env", "NOT_THERE"))
