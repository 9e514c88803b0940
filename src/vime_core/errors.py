"""What can be wrong, as a closed list; one offence, one code.

The hundreds digit is the stage that found it: 0 cluster facts, 1 intake, 2 topology, 3 placement, 4 ports, 5 argv and
environment, 6 router, 7 weights, 8 a finished plan, 9 the command and a running fleet. ``docs/errors.md`` is generated
from this file.
"""

from collections.abc import Iterable, Mapping
from enum import Enum

from attrs import field, frozen


class Code(Enum):
    """Every offence: its code, its short name and what to do about it."""

    CLUSTER_SHAPE = ("VIME001", "cluster not understood", "Give HOSTSxGPUS such as 2x8, or a file with `nodes`.")
    CLUSTER_VALUE = ("VIME002", "bad cluster value", "Correct the value in the cluster file.")
    CLUSTER_KEY = ("VIME003", "unknown cluster key", "Remove the key or spell it as listed.")
    CLUSTER_TWICE = ("VIME004", "two hosts alike", "Every host needs a name and an address of its own.")

    ARGS_SHAPE = ("VIME101", "arguments not understood", "Give a mapping or an argparse Namespace.")
    VALUE = ("VIME102", "bad value", "Give a value of the kind listed.")
    UNKNOWN_ARGUMENT = ("VIME103", "unknown argument", "Check the spelling against the installed release.")
    OWNED = ("VIME104", "argument owned by the planner", "Remove it: the planner derives it from the layout.")
    SGLANG_NAME = ("VIME105", "SGLang name", "Use vLLM's name for it.")
    EXCLUSIVE = ("VIME106", "arguments exclude each other", "Keep one of them.")
    REQUIRED = ("VIME107", "argument missing", "Give the argument.")
    UNKNOWN_KEY = ("VIME108", "unknown key", "Remove the key or spell it as listed.")
    REMOVED = ("VIME109", "flag not in this vLLM release", "Use its replacement, or plan for a release that has it.")
    NOT_SUPPORTED = ("VIME110", "not supported yet", "Leave the argument out.")
    DUPLICATE = ("VIME111", "named twice", "Give every model a name of its own.")

    GROUP_SIZE = ("VIME201", "group is not whole engines", "Make it a multiple; a placeholder group can hold the rest.")
    TOTAL = ("VIME202", "groups do not add up", "Make the groups' GPUs sum to rollout_num_gpus.")
    NODE_LARGER = ("VIME203", "num_gpus_per_node contradicts the hosts", "Leave num_gpus_per_node out, or lower it.")
    NODE_TILING = ("VIME204", "engine does not tile its hosts", "Use a multiple of the GPUs per node, or at most one.")
    PARALLEL_PRODUCT = ("VIME205", "parallel sizes do not fit the engine", "Make tp * pp * dp * pcp equal its GPUs.")
    PARALLEL_VALUE = ("VIME206", "bad parallel size", "Give a whole number of at least 1.")
    DENSE_DP = ("VIME207", "dense model with data parallelism over hosts", "Use more engines instead of replicas.")
    ROLES = ("VIME208", "prefill and decode must come together", "Give at least one engine of each role.")
    EAGER = ("VIME209", "combination known to hang", "Remove the argument: the planner sets the safe value.")
    UNEVEN_HOSTS = ("VIME210", "hosts differ and the engine spans them", "State num_gpus_per_node.")
    NOT_MOE = ("VIME211", "expert parallelism on a dense model", "Remove the expert-parallel arguments.")
    PD_GEOMETRY = (
        "VIME212",
        "prefill and decode cannot exchange blocks",
        "Give both groups layouts that fit together.",
    )
    MODEL_FIT = ("VIME213", "model cannot fit", "Give an engine more GPUs, for tensor, pipeline or expert ranks.")
    COMBINATION = ("VIME214", "vLLM refuses this combination", "Leave one of them out.")
    CHECKPOINT = ("VIME215", "checkpoint laid out for other ranks", "Keep the layout it was saved with, or convert it.")

    OVERSUBSCRIBED = ("VIME301", "group oversubscribed", "Lower the request or add hosts.")
    STRADDLES_HOSTS = ("VIME302", "engine straddles hosts", "Choose sizes by which every process lies on one host.")
    STRADDLES_TRAINER = (
        "VIME303",
        "engine straddles the trainer's edge",
        "Choose sizes by which every engine lies inside the trainer's slots or outside them.",
    )
    TRAINER_TOO_LARGE = ("VIME304", "trainer larger than the cluster", "Lower the actor's size or add hosts.")

    NO_PORTS = ("VIME401", "no free port interval", "Free some ports below the ephemeral floor on that host.")
    PORT_TAKEN = ("VIME402", "port cannot be given", "Choose a free port below the host's ephemeral floor.")

    LOOPBACK = ("VIME501", "loopback address among several hosts", "Give the address the other hosts reach it by.")
    ENV_OWNED = ("VIME502", "environment variable owned by the planner", "Remove it from the group's env.")

    ROUTER_ADDRESS = ("VIME601", "router address not in the cluster", "Give the address of one of the hosts.")
    ROUTER_POLICY = ("VIME602", "router policy cannot work here", "Choose another policy.")

    WEIGHT_TRANSPORT = ("VIME701", "weights cannot travel that way", "Leave weight_transfer_config to the planner.")

    BROKEN_LAW = ("VIME801", "plan breaks a law", "This is a fault of the planner or an edited plan: report it.")
    PLAN_TEXT = ("VIME802", "plan text not understood", "Give a file that `vime plan --format json` wrote.")
    PLAN_DIGEST = ("VIME803", "plan was changed after planning", "Plan again instead of editing the file.")

    PROCESS_DIED = ("VIME901", "process died", "Read its last log lines.")
    START_DEADLINE = ("VIME902", "not up in time", "Read its log; raise the start-up deadline if it was still loading.")
    PROBE_FAILED = ("VIME903", "engine does not answer", "Read its log.")
    SPAWN_FAILED = ("VIME904", "process could not be started", "Check that the program is installed and on PATH.")
    ROUTER_FAILED = ("VIME905", "router failed", "Read its log.")
    PORT_BUSY = ("VIME906", "planned port is in use", "End its owner or plan again with this host's facts.")
    STATE_DIR = ("VIME907", "state directory unusable", "Choose another one, or run `vime down` there first.")
    HTTP = ("VIME908", "call not answered", "Read the answer and the engine's log.")
    FACTS_MOVED = ("VIME909", "this machine is not the one planned for", "Plan again with the facts of this machine.")
    STOPPED = ("VIME910", "fleet is not running", "Start it with `vime up`.")
    USAGE = ("VIME911", "command not understood", "Add --help to the command to see what it takes.")
    OUTSTAYED = ("VIME912", "process outstays its end", "It is told to end again; look at what it waits for.")
    MANY_FAILED = ("VIME913", "most engines failed together", "Look for what they share: host, network, disk, weights.")
    SYNC_OVERDUE = ("VIME914", "weights not replaced in time", "Read the trainer's log; raise the sync deadline.")
    CUT_OFF = ("VIME915", "requests cut off", "Raise the drain deadline, or finish the requests first.")
    NOT_DONE = ("VIME916", "order not carried out", "Read what the engines do instead; raise the time limit.")
    DECODE_ONLY = ("VIME917", "PD runs decode-only", "Read the logs of both sides; compare their kv_transfer_config.")
    NO_MODEL = ("VIME918", "no model there", "Check the path, from the folder in which the fleet is started.")

    @property
    def id(self) -> str:
        """The code a user searches for, such as VIME301."""
        return self.value[0]

    @property
    def title(self) -> str:
        """The offence in a few words."""
        return self.value[1]

    @property
    def remedy(self) -> str:
        """What usually mends it."""
        return self.value[2]


_SHOWN = 200


def shown(value: object) -> str:
    """Return ``value`` as one short line that never raises, whatever its type."""
    if isinstance(value, str) and value.isprintable() and value.strip():
        text = value
    else:
        try:
            text = repr(value)
        except Exception as error:
            text = f"<{type(value).__name__}, unprintable: {type(error).__name__}>"
    text = one_line(text)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def one_line(text: str) -> str:
    """Return a text of ours, in which a name of the user's may stand, with what cannot be printed escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


_DEEPEST, _MOST, _LARGEST = 50, 100_000, 1 << 64


def showable(value: object) -> bool:
    """Whether a value made of mappings, lists and scalars can be worked with and printed at all.

    YAML can write down what Python cannot print: lists that hold themselves or each other a million times over, and
    whole numbers of thousands of digits.
    """
    level, seen = [value], 0
    for _ in range(_DEEPEST):
        seen += len(level)
        if seen > _MOST or any(isinstance(v, int) and abs(v) >= _LARGEST for v in level):
            return False
        level = [inner for v in level for inner in _inside(v)]
        if not level:
            return True
    return False


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return (*value, *value.values())
    return value if isinstance(value, list | tuple | set | frozenset) else ()


SHOWABLE = "fewer than 50 levels and numbers below 2 ** 64"
"""What ``showable`` asks for, in words."""


@frozen
class Problem:
    """One refusal: the offence, where it is, what was found, what is allowed, and a hint.

    ``found`` and ``allowed`` are made into short texts at once, so that a problem is hashable and comparable whatever
    the user gave.
    """

    code: Code
    where: str = field(converter=shown)
    found: str = field(converter=shown)
    allowed: str = field(converter=one_line)
    hint: str = field(converter=one_line)

    @hint.default
    def _usual_remedy(self) -> str:
        return self.code.remedy

    def __str__(self) -> str:
        """The problem in one line that starts with its code."""
        c = self.code
        return f"{c.id} {c.title} @ {self.where}: found {self.found}; allowed: {self.allowed} (hint: {self.hint})"


class PlanRefused(ValueError):  # noqa: N818 - the name says what happened; it is part of the public interface
    """A request cannot be planned. ``problems`` holds every reason once, in the order of the pipeline."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        super().__init__("\n".join(str(p) for p in self.problems))

    def __reduce__(self) -> tuple[type["PlanRefused"], tuple[tuple[Problem, ...]]]:
        """Say how it is made again where it crosses processes."""
        return type(self), (self.problems,)
