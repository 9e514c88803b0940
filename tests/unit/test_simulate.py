"""`vime simulate` as a user meets it: its three formats, its exit status, its refusals, and that it repeats itself."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tools.make_simulate_page import page

from vime_adapters.cli.main import main
from vime_adapters.fake.mishaps import Kind

ROOT = Path(__file__).parents[2]
ASK = [
    *("simulate", "--cluster", "3x8", "--hf-checkpoint", "Qwen/Qwen3-8B", "--actor-num-nodes", "1"),
    *("--rollout-num-gpus", "16", "--rollout-num-gpus-per-engine", "4", "--duration", "1h", "--seed", "7"),
]
STORY = """
- {at: 10m, kind: crash, target: default-3}
- {at: 30m, kind: host-loss, target: node-2, for: 10m}
- {at: 40m, kind: router-death}
"""


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of one command."""
    code = main(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def faults(tmp_path: Path, text: str = STORY) -> list[str]:
    """Return the option that names a file of faults."""
    path = tmp_path / "faults.yaml"
    path.write_text(text)
    return ["--faults", str(path)]


def test_the_manual_is_current() -> None:
    """What the example in docs/simulate.md prints, a golden timeline, and its table of kinds, are those of today."""
    text = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")
    assert page(text) == text, "run: python tools/make_simulate_page.py"


def test_json_is_stable(capsys, tmp_path) -> None:
    """The same command prints the same bytes, another seed others; the keys are those that are documented."""
    words = [*ASK, "--format", "json", "--crash-rate", "0.5/h", "--sync-every", "10m", *faults(tmp_path)]
    code, first, _ = run(capsys, *words)
    assert (code, first) == run(capsys, *words)[:2]
    assert first != run(capsys, *words, "--seed", "8")[1]
    found = json.loads(first)
    assert list(found) == ["format", "plan", "options", "summary", "timeline", "mishaps", "series"]
    assert found["plan"]["engines"] == 4
    assert found["options"]["parameters"] == {"default": [8e9, "its name"]}
    manual = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")
    assert all(f"`{key}`" in manual for part in ("plan", "options", "summary") for key in found[part])
    assert len(found["series"]["rows"]) == 600
    assert all(len(row) == len(found["series"]["columns"]) for row in found["series"]["rows"])
    assert sum(sum(row[2:]) for row in found["series"]["rows"]) == pytest.approx(600 * 4, abs=1.0)


def test_html_is_one_file(capsys, tmp_path) -> None:
    """The page is a well-formed chart with every mishap marked, and it asks for nothing from elsewhere."""
    code, out, err = run(capsys, *ASK, "--format", "html", "--out", str(tmp_path / "p.html"), *faults(tmp_path))
    assert (code, out, err) == (0, "", f"written to {tmp_path / 'p.html'}\n")
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    drawing = re.search(r"<svg.*</svg>", text, re.DOTALL)
    assert drawing is not None
    marks = [mark for mark in ElementTree.fromstring(drawing[0]).iter() if mark.tag == "rect"]
    assert {"".join(mark.itertext()) for mark in marks} == {
        "0:10:00.0 crash: default-3",
        "0:30:00.0 host-loss: node-2",
        "0:40:00.0 router-death: router-default",
    }
    assert not re.search(r"(src|href)=|https?://", text)


def test_a_large_page_stays_small(capsys) -> None:
    """A page does not grow with engines: what is drawn is counted in spans and kinds."""
    words = ["simulate", "--cluster", "100x8", "--hf-checkpoint", "m", "--debug-rollout-only", "--duration", "6h"]
    _, out, _ = run(capsys, *words, "--rollout-num-gpus", "800", "--crash-rate", "0.1/h", "--format", "html")
    assert len(out) < 400_000
    assert "more lines" in out


def test_a_plan_file_is_played_as_it_is(capsys, tmp_path) -> None:
    """A file of `vime plan --out` stands where the arguments would, and gives the same life."""
    asked = [word for word in ASK[1:] if word not in ("--duration", "1h", "--seed", "7")]
    assert run(capsys, "plan", *asked, "--out", str(tmp_path / "plan.json"))[0] == 0
    played = run(capsys, "simulate", str(tmp_path / "plan.json"), "--duration", "1h", "--seed", "7")
    assert played == run(capsys, *ASK)


def test_a_fleet_that_ends_is_status_1(capsys, tmp_path) -> None:
    """A fleet that ended before its time gives 1, and the time of its end is told."""
    story = faults(tmp_path, "[{at: 20m, kind: crash, target: all}]")
    code, out, _ = run(capsys, *ASK, "--restarts", "0", *story)
    assert code == 1
    assert "failed, ended at 0:20:0" in out


def test_a_fleet_that_does_not_come_up_in_time_is_status_1(capsys) -> None:
    """When nothing serves by the end, the status is 1 and the times say never."""
    code, out, _ = run(capsys, *ASK, "--duration", "20")
    assert code == 1
    assert "first never, 90% never, all never" in out


def test_sizes_come_from_where_they_can(capsys, tmp_path) -> None:
    """--params wins, then config.json, then the name, then a guess; larger models come up later."""

    def first(*words: str) -> tuple[float, str]:
        found = json.loads(run(capsys, *ASK, "--format", "json", *words)[1])
        return found["summary"]["seconds_to"]["first"], found["options"]["parameters"]["default"][1]

    small, why = first()
    assert why == "its name"
    large, why = first("--params", "70B")
    assert why == "as given"
    assert large > small + 50
    assert first("--hf-checkpoint", "nameless")[1] == "nothing: guessed"
    config = {"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config |= {"num_key_value_heads": 4, "head_dim": 16, "intermediate_size": 128, "vocab_size": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert first("--hf-checkpoint", str(tmp_path))[1] == "its config.json"


def test_rates_by_kind_strike(capsys) -> None:
    """Every kind can be left to chance."""
    rates = [word for kind in Kind for word in ("--rate", f"{kind.value}=2/h")]
    _, out, _ = run(
        capsys, *ASK, *rates, "--policy", "start_losses=1", "--restarts", "100", "--duration", "8h", "--format", "json"
    )
    assert set(json.loads(out)["summary"]["mishaps"]) >= {"crash", "hang", "slow-load", "port-thief"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--duration", "0"], "VIME102 bad value @ --duration: found 0; allowed: more than 0: seconds"),
        (["--duration", "1w"], "VIME102 bad value @ --duration: found 1w; allowed: more than 0: seconds"),
        (["--sync-every", "often"], "VIME102 bad value @ --sync-every: found often; allowed: more than 0"),
        (["--repair", "x"], "VIME102 bad value @ --repair: found x"),
        (["--seed", "x"], "VIME102 bad value @ --seed: found x; allowed: a whole number from 0 to"),
        (["--inflight", "-1"], "VIME102 bad value @ --inflight: found -1"),
        (["--quorum", "90"], "VIME102 bad value @ --quorum: found 90; allowed: a share such as 90% or 0.9"),
        (["--params", "many"], "VIME102 bad value @ --params: found many; allowed: billions of parameters"),
        (["--crash-rate", "often"], "VIME102 bad value @ --crash-rate: found often; allowed: a number by a unit of"),
        (["--rate", "crsh=1/h"], "VIME102 bad value @ --rate: found crsh=1/h; allowed: KIND=RATE; did you mean crash?"),
        (["--rate", "hang=1"], "VIME102 bad value @ --rate: found 1; allowed: a number by a unit of time"),
        (
            ["--rate", "crash=1/h", "--crash-rate", "1/h"],
            "VIME111 named twice @ --crash-rate: found crash=1/h; allowed: one rate of crash",
        ),
        (["--policy", "bakoff=1"], "VIME103 unknown argument @ --policy: found bakoff; allowed: did you mean backoff?"),
        (["--restarts", "-1"], "VIME102 bad value @ --policy restarts: found -1"),
    ],
)
def test_bad_options_are_refused(capsys, words, said) -> None:
    """What cannot be understood is refused before anything is planned, with what is allowed."""
    code, out, err = run(capsys, *ASK, *words)
    assert (code, out) == (2, "")
    assert err.startswith(said)
    assert err.count("\n") == 1


def test_bad_files_are_refused(capsys, tmp_path) -> None:
    """Files of faults that are none, or that the plan has no targets for, are refused; so is a place for --out."""
    assert "VIME102 bad value @ --faults: found no such file" in run(capsys, *ASK, "--faults", str(tmp_path / "x"))[2]
    story = faults(tmp_path, "- {at: 1, kind: crash, target: defualt-3}\n- {at: x, kind: hang}")
    code, _, err = run(capsys, *ASK, *story)
    assert code == 2
    assert [line.split(" @ ")[1].split(":")[0] for line in err.splitlines()] == ["faults[0].target", "faults[1].at"]
    code, _, err = run(capsys, *ASK, "--out", str(tmp_path / "no" / "where"))
    assert code == 2
    assert "VIME102 bad value @ --out" in err
