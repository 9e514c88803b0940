"""Fleets over two hosts of a Ray cluster, each in a network namespace with an address of its own."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import QUICK, quick, tokens
from tests.rayhosts.spaces import PORT, NoNamespaces, Space, two_hosts

from vime_adapters.vllm.generate import Generation

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

TWO = {"rollout_num_gpus": 2, "rollout_num_gpus_per_engine": 2, "num_gpus_per_node": 1}
"""One engine that needs a GPU of each host."""


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Space, Space]]:
    """Yield two hosts with one GPU each, as far as Ray knows."""
    try:
        with two_hosts() as spaces:
            yield spaces
    except NoNamespaces as error:
        pytest.skip(f"no network namespaces here: {error}")


def _command(scene: str, host: Space, folder: Path, args: Mapping[str, object]) -> tuple[str, ...]:
    address = f"{host.address}:{PORT}"
    return (sys.executable, "-m", "tests.rayhosts.scenes", scene, address, str(folder), json.dumps(args))


def _played(scene: str, host: Space, folder: Path, args: Mapping[str, object]) -> dict[str, Any]:
    """Return what a driver on a host tells of a scene."""
    answer = host.run(*_command(scene, host, folder, args))
    assert answer.returncode == 0, f"{answer.stdout}\n{answer.stderr}"
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return found


def _left(hosts: tuple[Space, Space]) -> list[str]:
    """Return the command lines of vLLM, routers and supervisors that run on the hosts."""
    words = ("VLLM::", "vime-vllm-cpu", "vllm-router", "supervisor")
    lines = []
    for pid in [pid for host in hosts for pid in host.pids()]:
        try:
            line = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
        except OSError:
            continue
        lines += [line] * any(word in line for word in words)
    return lines


@pytest.mark.parametrize("pp", [1, 2])
def test_an_engine_over_two_hosts(hosts, pp, dense: Path, tmp_path: Path, reference: list[Generation]):
    """Tensor-parallel, or pipeline-parallel, ranks on two hosts sample the tokens of one process; nothing is left."""
    args = quick(dense, **TWO, vllm_pipeline_parallel_size=pp)
    found = _played("tokens", hosts[0], tmp_path, args)
    assert [tuple(answer) for answer in found["tokens"]] == tokens(reference)
    assert {address for _, address in found["places"].values()} == {host.address for host in hosts}
    assert {entries["GLOO_SOCKET_IFNAME"] for entries in found["env"].values()} == {"eth1"}
    assert found["left"] == []
    assert set(found["groups"]) <= {"REMOVED"}
    assert _left(hosts) == []


def test_prefill_on_one_host_and_decode_on_the_other(hosts, dense: Path, tmp_path: Path, reference: list[Generation]):
    """KV blocks come over the cable, which the transfer probe sees before the fleet serves."""
    args = {**QUICK, "hf_checkpoint": str(dense), "rollout_num_gpus": 2, "prefill_num_servers": 1}
    found = _played("tokens", hosts[0], tmp_path, args)
    assert [tuple(answer) for answer in found["tokens"]] == tokens(reference)
    assert len({address for _, address in found["places"].values()}) == 2
    assert _left(hosts) == []


def test_a_lost_host_is_named(hosts, dense: Path, tmp_path: Path):
    """When the raylet of a host is killed the fleet says which host, and serves on with the other."""
    args = quick(dense, rollout_num_gpus=2)
    driver = hosts[0].start(*_command("waits", hosts[0], tmp_path, args))
    try:
        assert driver.stdout is not None
        lines = iter(driver.stdout.readline, "")
        assert any(line.strip() == "serving" for line in lines)
        killed = time.time()
        assert hosts[1].kill("raylet/raylet")
        said = driver.communicate(timeout=300)[0].splitlines()
    finally:
        with_all = [pid for pid in (driver.pid,) if driver.poll() is None]
        for pid in with_all:
            os.killpg(pid, signal.SIGKILL)
    found = json.loads(said[-1])
    assert found["seen"] - killed < 60  # 8 s of silence, on a machine that may do other things
    assert hosts[1].address in found["faults"][0] or "is lost" in found["faults"][0]
    assert found["asked"] > 0
    assert sorted(found["states"].values()) == ["failed", "serving"]
    assert _left(hosts) == []
