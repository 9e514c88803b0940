"""Files of faults, and lengths, rates and shares as people write them: what is understood, and what is refused how."""

import pytest

from vime_adapters.fake.mishaps import ALL, ANY, Kind, Mishap
from vime_adapters.fake.quantities import length, rate, share, shown_length
from vime_adapters.fake.script import read_script
from vime_core import Cluster, ModelFacts, PlanRefused, make_plan

PLAN = make_plan(
    {"hf_checkpoint": "m", "actor_num_nodes": 1, "rollout_num_gpus": 16, "rollout_num_gpus_per_engine": 4},
    Cluster.uniform(3, 8),
    models=ModelFacts(False),
)


def refused(*entries: object) -> list[str]:
    """Return the problems of a script, without their hints."""
    with pytest.raises(PlanRefused) as found:
        read_script(list(entries), PLAN)
    return [str(problem).partition(" (hint")[0] for problem in found.value.problems]


def test_a_script_is_read_in_order_of_time() -> None:
    """Entries become mishaps, the earliest first, those of one time in the order of the file."""
    found = read_script(
        [
            {"at": "1h", "kind": "host-loss", "target": "node-1", "for": "30m"},
            {"at": 10, "kind": "crash", "target": ["default-0", "default-1.0"], "code": 1},
            {"at": "10s", "kind": "hang", "count": 2},
            {"at": "2m", "kind": "network-blip", "target": "all"},
            {"at": 0, "kind": "slow-load", "factor": 2.5, "target": "node-1"},
            {"at": 0, "kind": "port-thief", "target": "router-default", "ports": ["http"]},
            {"at": 0, "kind": "member-lost", "title": "VLLM::Worker"},
        ],
        PLAN,
    )
    assert found == (
        Mishap(0.0, Kind.SLOW_LOAD, ("node-1",), factor=2.5),
        Mishap(0.0, Kind.PORT_THIEF, ("router-default",)),
        Mishap(0.0, Kind.MEMBER_LOST, (ANY,), title="VLLM::Worker"),
        Mishap(10.0, Kind.CRASH, ("default-0", "default-1.0"), code=1),
        Mishap(10.0, Kind.HANG, (ANY,), count=2),
        Mishap(120.0, Kind.NETWORK_BLIP, (ALL,), lasts=30.0),
        Mishap(3600.0, Kind.HOST_LOSS, ("node-1",), lasts=1800.0),
    )


def test_an_empty_file_is_no_mishap() -> None:
    """A file without entries scripts nothing."""
    assert read_script(None, PLAN) == read_script([], PLAN) == ()


@pytest.mark.parametrize("value", [{"at": 1}, "crash", 3])
def test_a_script_that_is_no_list_is_refused(value) -> None:
    """A file must hold a list."""
    with pytest.raises(PlanRefused, match=r"VIME101 .* @ faults: .*a list of mappings"):
        read_script(value, PLAN)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("crash", "VIME101 arguments not understood @ faults[0]: found crash; allowed: a mapping with at, kind and"),
        ({"at": 1}, "VIME107 argument missing @ faults[0].kind: found nothing; allowed: crash, hang, slow-load,"),
        ({"kind": "crash"}, "VIME107 argument missing @ faults[0].at: found nothing; allowed: seconds, or a number"),
        ({"at": 1, "kind": "crsh"}, "VIME102 bad value @ faults[0].kind: found crsh; allowed: did you mean crash?"),
        ({"at": 1, "kind": 7}, "VIME102 bad value @ faults[0].kind: found 7; allowed: crash, hang"),
        ({"at": 1, "kind": ["hang"]}, "VIME102 bad value @ faults[0].kind: found ['hang']; allowed: "),
        ({"at": "soon", "kind": "hang"}, "VIME102 bad value @ faults[0].at: found soon; allowed: seconds"),
        ({"at": -1, "kind": "hang"}, "VIME102 bad value @ faults[0].at: found -1; allowed: seconds"),
        ({"at": True, "kind": "hang"}, "VIME102 bad value @ faults[0].at: found True; allowed: seconds"),
        (
            {"at": 1, "kind": "hang", "for": 0},
            "VIME102 bad value @ faults[0].for: found 0; allowed: seconds, or a number with s, m, h or d, such as 90, "
            "10m or 24h, more than 0",
        ),
        (
            {"at": 1, "kind": "hang", "code": 1},
            "VIME108 unknown key @ faults[0].code: found code; allowed: for hang: at, kind, target, count, for",
        ),
        (
            {"at": 1, "kind": "crash", "tarqet": "x"},
            "VIME108 unknown key @ faults[0].tarqet: found tarqet; allowed: for crash: did you mean target?",
        ),
        (
            {"at": 1, "kind": "crash", "target": "defualt-1"},
            "VIME102 bad value @ faults[0].target: found defualt-1; allowed: an engine or a rank of an engine, any or "
            "all: did you mean default-1?",
        ),
        (
            {"at": 1, "kind": "host-loss", "target": ["node-1", "default-0"]},
            "VIME102 bad value @ faults[0].target[1]: found default-0; allowed: a host, any or all: node-1, node-2, "
            "node-0",
        ),
        ({"at": 1, "kind": "crash", "target": []}, "VIME102 bad value @ faults[0].target: found []; allowed: at least"),
        ({"at": 1, "kind": "crash", "target": 3}, "VIME102 bad value @ faults[0].target: found 3; allowed: an engine"),
        (
            {"at": 1, "kind": "crash", "target": "default-1", "count": 2},
            "VIME106 arguments exclude each other @ faults[0].count: found 2; allowed: a count beside `target: any`",
        ),
        ({"at": 1, "kind": "crash", "count": 0}, "VIME102 bad value @ faults[0].count: found 0; allowed: a whole"),
        ({"at": 1, "kind": "crash", "code": 256}, "VIME102 bad value @ faults[0].code: found 256; allowed: a whole"),
        ({"at": 1, "kind": "slow-load", "factor": 0}, "VIME102 bad value @ faults[0].factor: found 0; allowed: a num"),
        ({"at": 1, "kind": "member-lost", "title": ""}, "VIME102 bad value @ faults[0].title: found ''; allowed: a t"),
        ({"at": 1, "kind": "port-thief", "ports": "htp"}, "VIME102 bad value @ faults[0].ports: found htp; allowed: d"),
        ({"at": 1, "kind": "port-thief", "ports": []}, "VIME102 bad value @ faults[0].ports: found []; allowed: http"),
    ],
)
def test_what_is_wrong_with_an_entry_is_told(entry, said) -> None:
    """Each fault of an entry is refused with its place, what was found and what is allowed."""
    (problem,) = refused(entry)
    assert problem.startswith(said)


def test_all_problems_are_told_at_once() -> None:
    """A script is refused once, with everything that is wrong with it."""
    assert (
        len(refused({"at": "x", "kind": "crash", "code": "y", "z": 1}, {"kind": "no"}, {"at": 1, "kind": "hang"})) == 4
    )


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(90, 90.0), ("1.5", 1.5), ("10m", 600.0), ("24h", 86400.0), ("2 d", 172800.0), ("0", 0.0)],
)
def test_lengths(given, seconds) -> None:
    """Numbers are seconds; a unit may follow."""
    assert length(given) == seconds


@pytest.mark.parametrize("given", ["", "m", "-1", "1w", "1h30m", None, True, [], "1e3", "\u0661"])
def test_what_is_no_length(given) -> None:
    """Anything else is no length of time."""
    assert length(given) is None


def test_rates_and_shares() -> None:
    """Rates are per a unit of time; shares are fractions or per cent."""
    assert rate("0.01/h") == pytest.approx(0.01 / 3600)
    assert rate("2 / d") == pytest.approx(2 / 86400)
    assert [rate(text) for text in ("0.01", "/h", "1/w", None)] == [None] * 4
    assert (share("90%"), share("0.9"), share("1"), share("100%")) == (0.9, 0.9, 1.0, 1.0)
    assert [share(text) for text in ("90", "101%", "x", None)] == [None] * 4


def test_lengths_for_people() -> None:
    """Short times have tenths, long ones two units."""
    assert [shown_length(s) for s in (0.04, 93.24, 725.4, 18_183.0)] == ["0.0 s", "93.2 s", "12 min 5 s", "5 h 3 min"]
