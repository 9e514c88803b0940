"""How fleets end: by a kill of the head, of the driver, by a bad model, by `vime down`."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.integration.conftest import Traces, launch, quick

from vime_adapters.fleet import FleetFailed
from vime_adapters.state import StateFolder
from vime_adapters.vllm.generate import Sampling
from vime_core import parse

VIME = [sys.executable, "-m", "vime_adapters.cli.main"]


def _flags(args: dict[str, object]) -> list[str]:
    words = []
    for name, value in args.items():
        words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return words


@pytest.mark.engine
def test_killed_head_leaves_the_other_engine_serving(dense: Path, tmp_path: Path) -> None:
    """SIGKILL of one head's API server degrades the fleet; the other engine answers on; closing leaves nothing."""
    traces = Traces.before()
    with launch(quick(dense, rollout_num_gpus=2), "local:2", state_dir=tmp_path) as fleet:
        fleet.wait_ready(timeout=400)
        victim = fleet.status().engines[0]
        began = time.monotonic()
        os.kill(victim.processes[0].pid, signal.SIGKILL)
        while fleet.status().state.value != "degraded" and time.monotonic() - began < 15:
            time.sleep(0.1)
        status = fleet.status()
        assert (status.state.value, status.can_serve) == ("degraded", True)
        assert status.faults[0].process == victim.processes[0].id
        assert status.faults[0].tail
        time.sleep(1.0)
        for prompt in ([1, 2, 3], [4, 5, 6], [7, 8, 9]):
            assert len(fleet.generate(prompt, Sampling(max_tokens=2, temperature=0.0)).token_ids) == 2
    assert traces.left_by(fleet.fleet_id, fleet.plan) == []


@pytest.mark.engine
def test_killed_driver_takes_everything_with_it(dense: Path, tmp_path: Path) -> None:
    """SIGKILL of `vime up` leaves no process, port or segment within 15 s, and status says that the driver is gone."""
    traces = Traces.before()
    args = {**quick(dense, rollout_num_gpus=1)}
    command = [*VIME, "up", "--state-dir", str(tmp_path), "--cluster", "local:1", *_flags(args)]
    with (tmp_path / "out").open("wb") as out:
        up = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        state = StateFolder(tmp_path)
        deadline = time.monotonic() + 400
        while not (state.status() or {}).get("can_serve") and time.monotonic() < deadline:
            assert up.poll() is None, (tmp_path / "out").read_text()
            time.sleep(0.5)
        owner = state.owner()
        assert owner is not None
        plan = parse(state.plan_text() or "")
    finally:
        up.send_signal(signal.SIGKILL)
        up.wait()
    began = time.monotonic()
    while traces.left_by(owner.fleet_id, plan) and time.monotonic() - began < 15:
        time.sleep(0.2)
    assert traces.left_by(owner.fleet_id, plan) == []
    status = subprocess.run(
        [*VIME, "status", "--state-dir", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert status.returncode == 1
    assert "gone without a word" in status.stdout
    down = subprocess.run([*VIME, "down", "--state-dir", str(tmp_path)], capture_output=True, text=True, check=False)
    assert (down.returncode, "down" in down.stdout) == (0, True)


@pytest.mark.engine
def test_down_from_another_shell(dense: Path, tmp_path: Path) -> None:
    """`vime down` ends a fleet that is still starting; `vime up` then reports a clean end with exit code 0."""
    traces = Traces.before()
    command = [*VIME, "up", "--state-dir", str(tmp_path), "--cluster", "local:1"]
    command += _flags({**quick(dense, rollout_num_gpus=1)})
    up = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    state = StateFolder(tmp_path)
    deadline = time.monotonic() + 60
    while state.status() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    owner, plan = state.owner(), parse(state.plan_text() or "")
    assert owner is not None
    down = subprocess.run([*VIME, "down", "--state-dir", str(tmp_path)], capture_output=True, text=True, check=False)
    out, err = up.communicate(timeout=60)
    assert (down.returncode, up.returncode) == (0, 0), (down, out, err)
    assert "stopped" in out
    assert traces.left_by(owner.fleet_id, plan) == []


@pytest.mark.engine
def test_a_folder_without_a_model_fails_with_vllms_own_words(tmp_path: Path) -> None:
    """A folder that holds no model fails the start as soon as vLLM says so, with its last lines, not with a timeout."""
    traces = Traces.before()
    model = tmp_path / "no-model-in-here"
    model.mkdir()
    began = time.monotonic()
    with launch(quick(model, rollout_num_gpus=1), "local:1", state_dir=tmp_path / "state") as fleet:
        with pytest.raises(FleetFailed) as failed:
            fleet.wait_ready(timeout=150)
        assert time.monotonic() - began < 120
        status = failed.value.status
        assert status.state.value == "failed"
        assert status.faults[0].process == "default-0.0"
        assert re.search("no-model-in-here", "\n".join(status.faults[0].tail))
    assert traces.left_by(fleet.fleet_id, fleet.plan) == []


def test_a_plan_for_other_hosts_is_refused(tmp_path: Path) -> None:
    """`vime up` of a plan whose hosts are not this machine names the addresses and starts nothing."""
    plan = tmp_path / "plan.json"
    ask = [
        "--cluster",
        "2x8",
        "--hf-checkpoint",
        "m",
        "--rollout-num-gpus",
        "8",
        "--out",
        str(plan),
        "--format",
        "json",
    ]
    made = subprocess.run([*VIME, "plan", *ask], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout) == json.loads(plan.read_text())
    up = subprocess.run(
        [*VIME, "up", str(plan), "--state-dir", str(tmp_path / "s")], capture_output=True, text=True, check=False
    )
    assert up.returncode == 2
    assert up.stderr.startswith("VIME909")
    assert "10.0.0.2" in up.stderr
