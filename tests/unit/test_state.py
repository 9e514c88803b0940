"""The state folder and the port leases: what other shells and other fleets see of a running one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vime_adapters.preflight import leases
from vime_adapters.state import Owner, StateFolder, default_folder
from vime_core import Cluster, Code, PlanRefused, make_plan, parse
from vime_core.plan import LaunchPlan
from vime_core.ports import SPARE_SPAN

HOLD = """
import sys
from pathlib import Path
from vime_adapters.preflight import leases
from vime_adapters.state import StateFolder
from vime_core import Cluster, make_plan
plan = make_plan({"hf_checkpoint": "m", "debug_rollout_only": True, "rollout_num_gpus": 1}, Cluster.uniform(1, 1))
state = StateFolder(Path(sys.argv[1]))
state.claim("f1", plan)
leases.lease("f1", plan)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def plan() -> LaunchPlan:
    """Return a small plan."""
    args = {"hf_checkpoint": "m", "debug_rollout_only": True, "rollout_num_gpus": 1}
    return make_plan(args, Cluster.uniform(1, 1))


@pytest.fixture
def holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Yield another process that has claimed a folder and leased its plan's ports."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    folder = tmp_path / "fleet"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield folder, process
    process.kill()
    process.communicate()


def test_a_folder_belongs_to_one_fleet(holder, plan: LaunchPlan) -> None:
    """A folder that a living fleet has claimed is refused, naming its driver; a killed driver frees it."""
    folder, process = holder
    state = StateFolder(folder)
    owner = state.owner()
    assert (owner.pid, owner.is_alive()) == (process.pid, True)
    with pytest.raises(PlanRefused) as refused:
        state.claim("f2", plan)
    assert [p.code for p in refused.value.problems] == [Code.STATE_DIR]
    assert str(process.pid) in str(refused.value)
    process.kill()
    process.wait()
    assert not state.owner().is_alive()
    state.claim("f2", plan)
    assert state.owner().fleet_id == "f2"
    assert parse(state.plan_text()) == plan
    state.release()
    assert state.owner() is None
    assert state.plan_text() is not None


def test_leases_live_as_long_as_their_process(holder) -> None:
    """A lease reserves its ports for others until its process is gone; then it is removed."""
    _, process = holder
    assert sum(i.count for i in leases.leased_intervals()) == 35 + SPARE_SPAN
    process.kill()
    process.wait()
    assert leases.leased_intervals() == ()
    assert list(leases.folder().glob("*.json")) == []


def test_a_broken_lease_harms_nobody(holder) -> None:
    """A file among the leases that is none is passed over and left alone."""
    stray = leases.folder() / "stray.json"
    stray.write_text("{", encoding="utf-8")
    assert len(leases.leased_intervals()) > 0
    assert stray.exists()


def test_an_unwritable_folder_is_refused(tmp_path: Path, plan: LaunchPlan) -> None:
    """A folder that cannot be made is refused with the system's reason."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(PlanRefused, match="VIME907"):
        StateFolder(tmp_path / "file" / "state").claim("f", plan)


def test_status_is_whole_or_absent(tmp_path: Path, plan: LaunchPlan) -> None:
    """A status comes back as it was written with its time; damaged files count as none."""
    state = StateFolder(tmp_path)
    assert (state.status(), state.owner(), state.plan_text()) == (None, None, None)
    state.claim("f", plan)
    state.write_status({"state": "serving"})
    assert state.status()["state"] == "serving"
    assert state.status()["written"] > 0
    (tmp_path / "status.json").write_text("[]", encoding="utf-8")
    (tmp_path / "owner.json").write_text(json.dumps({"pid": 1}), encoding="utf-8")
    assert (state.status(), state.owner()) == (None, None)
    state.release()


def test_a_recycled_pid_is_not_the_owner() -> None:
    """A living process with the pid but another start is not the one that drove the fleet."""
    assert not Owner(os.getpid(), 1.0, "f", 1.0).is_alive()


def test_the_default_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    """XDG_STATE_HOME moves the state folders; without it they are under the home folder."""
    monkeypatch.setenv("XDG_STATE_HOME", "/x")
    assert default_folder("a") == Path("/x/vime/a")
    monkeypatch.delenv("XDG_STATE_HOME")
    assert default_folder() == Path.home() / ".local" / "state" / "vime" / "default"
