"""The command line as a user meets it: texts, exit codes, one problem a line, no traceback ever."""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from vime_adapters.cli.main import VERBS, main
from vime_adapters.cli.show import runs
from vime_adapters.state import StateFolder
from vime_core import Cluster, make_plan, parse

ASK = ["plan", "--cluster", "2x8", "--hf-checkpoint", "m", "--rollout-num-gpus", "8"]

SMALL = {"hf_checkpoint": "m", "debug_rollout_only": True, "rollout_num_gpus": 1}


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of one command."""
    code = main(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_plan_as_json_reads_back(capsys, tmp_path: Path) -> None:
    """--format json prints the plan and nothing else; --out writes the same plan."""
    code, out, err = run(capsys, *ASK, "--format", "json", "--out", str(tmp_path / "p.json"))
    assert (code, err) == (0, "")
    assert parse(out) == parse((tmp_path / "p.json").read_text())


def test_plan_as_table_names_everything(capsys) -> None:
    """The table shows engines, hosts, GPUs, ports, router and weights, and folds runs of GPUs."""
    _, out, _ = run(capsys, *ASK, "--rollout-num-gpus-per-engine", "8")
    for word in ("default-0", "node-1", "0-7", "router", "weights", "nccl", "digest"):
        assert word in out


def test_plan_as_shell_is_a_script(capsys) -> None:
    """--format shell prints a command for every process that a shell reads without complaint."""
    code, out, _ = run(capsys, *ASK, "--format", "shell", "--vllm-hf-overrides", '{"a": "it\'s"}')
    assert code == 0
    assert out.count("serve m") == 8
    assert subprocess.run(["bash", "-n"], input=out, text=True, check=False).returncode == 0


def test_many_engines_are_folded(capsys) -> None:
    """A fleet of hundreds prints a screen, not hundreds of rows."""
    _, out, _ = run(
        capsys, "plan", "--cluster", "40x8", "--hf-checkpoint", "m", "--colocate", "--actor-num-nodes", "40"
    )
    assert "and 256 more engines" in out


def test_refusals_are_one_a_line(capsys) -> None:
    """A refused request prints nothing on standard output, and every problem on its own line after its code."""
    code, out, err = run(capsys, *ASK, "--vllm-data-parallel-size", "0", "--vllm-mem-fraction-static", "1")
    assert (code, out) == (2, "")
    assert [line[:7] for line in err.splitlines()] == ["VIME105"]
    code, out, err = run(capsys, *ASK, "--vllm-data-parallel-size", "0")
    assert (code, out, err[:7]) == (2, "", "VIME206")


@pytest.mark.parametrize(
    "words",
    [
        ["--args", "/nonexistent.yaml"],
        ["--vllm-version", "soon"],
        ["--cluster", "nonsense"],
        ["--cluster", "local:0"],
        ["--vllm-config", "/nonexistent.yaml"],
    ],
)
def test_files_and_names_that_are_not_there(capsys, words: list[str]) -> None:
    """What cannot be read or is not known is refused with its place, like any other problem."""
    code, out, err = run(capsys, *ASK, *words)
    assert (code, out, err[:4]) == (2, "", "VIME")
    assert words[1].split(":")[0] in err or "No such file" in err


def test_files_of_the_wrong_kind(capsys, tmp_path: Path) -> None:
    """Arguments that are a list, and YAML that is none, are refused."""
    path = tmp_path / "a.yaml"
    for text in ("[1, 2]", "{", "\x00"):
        path.write_text(text)
        assert run(capsys, *ASK, "--args", str(path))[0] == 2


def test_flags_win_over_the_file(capsys, tmp_path: Path) -> None:
    """An argument given both ways has the flag's value, whatever its spelling in the file."""
    path = tmp_path / "a.yaml"
    path.write_text("rollout-num-gpus: 4\nseed: 7\n")
    _, out, _ = run(capsys, *ASK, "--args", str(path), "--format", "json")
    assert [e["seed"] for e in json.loads(out)["engines"]] == list(range(7, 15))


def test_two_spellings_in_one_file(capsys, tmp_path: Path) -> None:
    """A file that gives an argument under two spellings is refused: one of them would be lost."""
    path = tmp_path / "a.yaml"
    path.write_text("rollout-num-gpus: 4\nrollout_num_gpus: 8\n")
    code, out, err = run(capsys, *ASK, "--args", str(path))
    assert (code, out, err.startswith("VIME106 arguments exclude each other @ rollout_num_gpus: ")) == (2, "", True)


def test_a_config_json_tells_the_kind_of_model(capsys, tmp_path: Path) -> None:
    """A local model's config.json settles whether it has experts, without --moe or --dense."""
    (tmp_path / "config.json").write_text(json.dumps({"num_experts": 8, "num_key_value_heads": 2}))
    words = ["plan", "--cluster", "1x8", "--hf-checkpoint", str(tmp_path), "--debug-rollout-only"]
    words += ["--rollout-num-gpus", "8", "--rollout-num-gpus-per-engine", "8", "--vllm-pipeline-parallel-size", "2"]
    _, out, _ = run(capsys, *words, "--format", "json")
    assert "--enforce-eager" in json.loads(out)["engines"][0]["processes"][0]["argv"]


def test_errors_explains_codes(capsys) -> None:
    """`vime errors` prints one code, all of them, or says that there is none such."""
    code, out, _ = run(capsys, "errors", "vime301")
    assert (code, out.startswith("VIME301  group oversubscribed.")) == (0, True)
    assert len(run(capsys, "errors")[1].splitlines()) > 30
    assert run(capsys, "errors", "VIME999")[0] == 2


def test_verbs_of_a_fleet_that_never_was(capsys, tmp_path: Path) -> None:
    """status, down and generate say that there is no fleet, and where they looked."""
    for words in (["status"], ["down"], ["generate", "1"]):
        code, _, err = run(capsys, *words, "--state-dir", str(tmp_path))
        assert code == 2
        assert str(tmp_path) in err
    assert run(capsys, "status", "--name", "../x")[0] == 2


def test_help_needs_nothing(capsys) -> None:
    """`vime` alone prints its verbs, and `vime VERB --help` ends with 0."""
    code, out, _ = run(capsys)
    assert code == 0
    assert all(verb in out for verb in VERBS)
    with pytest.raises(SystemExit) as stop:
        main(["plan", "--help"])
    assert stop.value.code == 0


@pytest.mark.parametrize(
    ("words", "where", "found"),
    [
        (["fly"], "vime", "argument VERB: invalid choice: 'fly'"),
        (["status", "--rollout-num-gpus", "8"], "vime", "unrecognized arguments: --rollout-num-gpus 8"),
        (["plan"], "vime plan", "the following arguments are required: --cluster"),
        (["plan", "--cluster"], "vime plan", "argument --cluster: expected one argument"),
        (["plan", "--cluster", "1x8", "--moe", "--dense"], "vime plan", "argument --dense: not allowed with"),
        (["plan", "--cluster", "1x8", "--format", "xml"], "vime plan", "argument --format: invalid choice: 'xml'"),
        (["demo", "--engines", "two"], "vime demo", "argument --engines: invalid int value: 'two'"),
        (["errors", "VIME999"], "vime errors", "VIME999"),
    ],
)
def test_errors_of_usage_are_refusals(capsys, words: list[str], where: str, found: str) -> None:
    """What the command cannot read is said in one line with a code, like any other refusal, and the status is 2."""
    code, out, err = run(capsys, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"VIME911 command not understood @ {where}: found {found}")


def test_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
    """`vime plan | head -1` ends quietly."""
    command = f"{sys.executable} -m vime_adapters.cli.main {' '.join(ASK)} --format json | head -c 1"
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=env, check=False)
    assert "Traceback" not in done.stderr


def test_runs_of_gpu_ids() -> None:
    """Numbers in a row are folded, others are not."""
    assert runs(["0", "1", "2", "5", "GPU-a", "7", "8"]) == "0-2,5,GPU-a,7-8"


def test_up_takes_a_plan_or_arguments_never_both(capsys, tmp_path: Path) -> None:
    """A plan file beside trainer arguments is refused; the value of a flag is never taken for a plan file."""
    code, _, err = run(capsys, "up", "--state-dir", str(tmp_path), "--", "python", "train.py", "--hf-checkpoint", "m")
    assert (code, "VIME107" in err, "rollout_num_gpus" in err) == (2, True, True)
    code, _, err = run(capsys, "up", "p.json", "--args", "a.yaml", "--state-dir", str(tmp_path))
    assert (code, err[:7]) == (2, "VIME106")
    code, _, err = run(capsys, "up", str(tmp_path / "p.json"), "--state-dir", str(tmp_path))
    assert (code, err[:7]) == (2, "VIME802")
    code, _, err = run(capsys, "up", "--hf-checkpoint", "tiny", "--state-dir", str(tmp_path))
    assert (code, "VIME107" in err, "rollout_num_gpus" in err) == (2, True, True)


def test_a_fleet_that_ended_cannot_serve(capsys, tmp_path: Path) -> None:
    """A status that says serving counts for nothing once nobody owns the folder."""
    state = StateFolder(tmp_path)
    state.claim("f", make_plan(SMALL, Cluster.uniform(1, 1)))
    state.write_status({"state": "serving", "can_serve": True, "why": "all"})
    assert run(capsys, "status", "--state-dir", str(tmp_path))[0] == 0
    state.release()
    code, out, _ = run(capsys, "status", "--state-dir", str(tmp_path))
    assert (code, "stopped" in out) == (1, True)
    assert run(capsys, "down", "--state-dir", str(tmp_path))[0] == 0


def test_status_waits_until_the_fleet_can_serve(capsys, tmp_path: Path) -> None:
    """--wait returns as soon as the fleet can serve, and after its time when it cannot."""
    state = StateFolder(tmp_path)
    state.claim("f", make_plan(SMALL, Cluster.uniform(1, 1)))
    state.write_status({"state": "starting", "can_serve": False, "why": "waiting"})
    where = ["--state-dir", str(tmp_path)]
    began = time.monotonic()
    assert run(capsys, "status", *where, "--wait", "0.5")[0] == 1
    assert time.monotonic() - began >= 0.5
    served = {"state": "serving", "can_serve": True, "why": "all"}
    timer = threading.Timer(0.3, state.write_status, (served,))
    timer.start()
    assert run(capsys, "status", *where, "--wait", "60")[0] == 0
    timer.join()
    state.release()


def test_a_plan_that_cannot_be_written(capsys, tmp_path: Path) -> None:
    """--out to a folder that is not there is refused like everything else."""
    code, out, err = run(capsys, *ASK, "--out", str(tmp_path / "none" / "p.json"))
    assert (code, out, err[:7]) == (2, "", "VIME102")


@pytest.mark.parametrize(
    "text",
    ["rollout_num_gpus: 2020-99-99", "a: " + "9" * 6000, "hf_checkpoint: [a]", "hf_checkpoint: &a [*a]", "[" * 9999],
)
def test_yaml_that_no_reader_likes(capsys, tmp_path: Path, text: str) -> None:
    """Dates that are none, endless numbers, lists for texts, anchors in a circle, deep nesting are refused."""
    path = tmp_path / "a.yaml"
    path.write_text(text)
    ask = ["plan", "--rollout-num-gpus", "8", "--cluster"]
    for words in ([*ask, "2x8", "--args", str(path)], [*ask, str(path), "--hf-checkpoint", "m"]):
        code, out, err = run(capsys, *words)
        assert (code, out, err[:4]) == (2, "", "VIME")


def test_only_files_of_a_sensible_size_are_read(capsys, tmp_path: Path) -> None:
    """A device, a named pipe and a huge file are refused at once instead of being read for ever."""
    pipe, huge = tmp_path / "pipe", tmp_path / "huge"
    os.mkfifo(pipe)
    with huge.open("wb") as file:
        file.truncate(5 << 20)
    for path in (pipe, huge, Path("/dev/zero"), tmp_path):
        assert run(capsys, *ASK, "--args", str(path))[0] == 2
        assert run(capsys, "plan", "--cluster", str(path))[0] == 2
    for path in (pipe, Path("/dev/zero"), tmp_path):
        assert run(capsys, "explain", str(path))[0] == 2
        assert run(capsys, "up", str(path), "--state-dir", str(tmp_path / "s"))[0] == 2
    assert run(capsys, "plan", "--cluster", "x" * 5000)[0] == 2
    assert run(capsys, "plan", "--cluster", "1x" + "9" * 5000)[0] == 2


def test_output_that_cannot_be_written_is_no_traceback() -> None:
    """A full disk behind standard output, or none at all, ends in a sentence or in silence."""
    for redirect in (">/dev/full", ">&-"):
        command = f"{sys.executable} -m vime_adapters.cli.main {' '.join(ASK)} {redirect}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr
        assert done.returncode == (1 if "full" in redirect else 0)


def test_every_bad_number_of_a_policy_is_refused(capsys, tmp_path) -> None:
    """Numbers of the policy that do not exist, are none, or cannot be are refused at once, all of them."""
    words = ["--policy", "suspect=1", "--policy", "backoff=x", "--policy", "start_losses=3", "--restarts", "-1"]
    code, _, said = run(
        capsys, "up", *words, "--state-dir", str(tmp_path), "--cluster", "local:1", "--hf-checkpoint", "m"
    )
    assert code == 2
    assert [line.split(" @ ")[0] + " " + line.split(" @ ")[1].split(":")[0] for line in said.splitlines()] == [
        "VIME103 unknown argument --policy",
        "VIME102 bad value --policy backoff",
        "VIME102 bad value --policy restarts",
        "VIME102 bad value --policy start_losses",
    ]
    assert "did you mean suspect_deadline?" in said


def test_a_policy_from_flags() -> None:
    """--restarts and --policy set their numbers and leave the others as they are."""
    from vime_adapters.cli.up import policy_of
    from vime_core.lifecycle.policy import Policy

    options = argparse.Namespace(restarts=7, policy=["suspect_deadline=90", "hold_least=5"])
    assert policy_of(options) == Policy(restarts=7, suspect_deadline=90.0, hold_least=5)
    assert policy_of(argparse.Namespace(restarts=None, policy=[])) == Policy()


def test_a_status_in_one_table(capsys, tmp_path) -> None:
    """Weights, restarts, what an engine still has to do and what is wrong with it stand in its line."""
    from vime_adapters.cli.status import text_of

    rank = {"id": "m-0.0", "state": "starting", "phase": "loading", "seconds": 3.0, "pid": 9}
    engine = {
        "id": "m-0",
        "state": "serving",
        "url": "http://h:1",
        "complaint": None,
        "weights": "step-7",
        "restarts": 1,
    }
    ill = {"complaint": "no step", "wants": ["sleep"], "given_up": True, "weights": "", "id": "m-1", "state": "suspect"}
    router = {"id": "router-m", "state": "ready", "url": "http://h:2", "complaint": None, "restarts": 0}
    found = {
        "state": "degraded",
        "why": "1 of 2 engines serve",
        "epoch": 4,
        "weights": [["m", "step-7"]],
        "engines": [{**engine, "processes": [rank]}, {**engine, **ill, "processes": []}],
        "routers": [router],
    }
    assert text_of(found, "default") == (
        "default: degraded: 1 of 2 engines serve\n"
        "  epoch 4, weights m step-7\n"
        "  engine    state    weights  restarts  url\n"
        "  m-0       serving  step-7   1         http://h:1\n"
        "    m-0.0          starting (loading) for 3 s, pid 9\n"
        "  m-1       suspect  unknown  1         http://h:1  to sleep; given up; no step\n"
        "  router-m  ready             0         http://h:2"
    )
    many = {**found, "engines": [{**engine, "id": f"m-{n}", "processes": [rank]} for n in range(1000)]}
    many["engines"][7] = {**engine, **ill, "processes": []}
    lines = text_of(many, "default").splitlines()
    assert len(lines) == 6
    assert lines[3].startswith("  m-1       suspect")
    assert lines[-1] == "  ... 1000 engines in all, 999 of them serving (--format json shows all)"
