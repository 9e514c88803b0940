"""Where a Ray cluster is looked for, and what is said when there is none: within seconds. Ray takes many minutes."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from vime_adapters.ray import connect as module
from vime_adapters.ray.connect import _address, _answers, connect
from vime_core import PlanRefused
from vime_core.errors import Code


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Look for clusters of this test alone, and not for long."""
    assert not ray.is_initialized()
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(module, "ANSWER", 0.2)


@pytest.fixture
def closed() -> Iterator[int]:
    """Yield a port at which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def refusal(join: bool) -> tuple[Code, str, str]:
    """Return code, place and finding of what `connect` raises."""
    with pytest.raises(PlanRefused) as refused:
        connect(join)
    (problem,) = refused.value.problems
    return problem.code, problem.where, str(problem.found)


@pytest.mark.parametrize("scheme", ["", "ray://"])
@pytest.mark.parametrize("join", [True, False])
def test_an_address_where_nothing_is(monkeypatch, closed, scheme, join):
    """The address is named, and who gave it."""
    monkeypatch.setenv("RAY_ADDRESS", f"{scheme}127.0.0.1:{closed}")
    code, where, found = refusal(join)
    assert (code, where) == (Code.CLUSTER_SHAPE, "RAY_ADDRESS")
    assert found.startswith(f"{scheme}127.0.0.1:{closed}, where nothing")


@pytest.mark.parametrize("join", [True, False])
def test_a_cluster_of_this_host_that_was_killed(tmp_path, closed, join):
    """Ray's own file still names it."""
    (tmp_path / "ray").mkdir()
    last = tmp_path / "ray" / "ray_current_cluster"
    last.write_text(f"127.0.0.1:{closed}", encoding="utf-8")
    code, where, found = refusal(join)
    assert (code, where) == (Code.CLUSTER_SHAPE, str(last))
    assert found.startswith(f"127.0.0.1:{closed}")


def test_none_is_started_where_one_is_to_be_joined():
    """The command joins a cluster."""
    assert refusal(True)[2].startswith("no cluster")
    assert not ray.is_initialized()


def test_what_ray_itself_refuses(monkeypatch):
    """Its first line is enough."""
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:8265")
    code, where, found = refusal(True)
    assert (code, where) == (Code.CLUSTER_SHAPE, "RAY_ADDRESS")
    assert "\n" not in found
    assert "Invalid Ray address" in found


def test_a_local_one_is_asked_for(monkeypatch, tmp_path):
    """RAY_ADDRESS=local starts one, whatever ran here last."""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1", encoding="utf-8")
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert _address()[1] == ""


def test_what_listens_answers():
    """By its host and port; where a scheme is not Ray's nothing is tried."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert _answers(f"127.0.0.1:{port}")
        assert _answers(f"ray://localhost:{port}")
    assert _answers("http://127.0.0.1:1")
