"""The options by which verbs learn what to plan: trainer arguments, cluster, vLLM release, kind of model."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from vime_adapters import arguments
from vime_adapters.megatron.checkpoint import read_checkpoints
from vime_adapters.preflight.observed import observed
from vime_core import Code, LaunchPlan, ModelFacts, PlanRefused, Problem, make_plan, slots_wanted

RAY = "ray"
"""The word for the hosts of a Ray cluster."""


def add_request_options(parser: argparse.ArgumentParser, cluster_default: str | None = None) -> None:
    """Add the options; every other flag is taken for the trainer's own."""
    parser.add_argument("--args", type=Path, metavar="FILE", help="YAML mapping of trainer arguments")
    parser.add_argument(
        "--cluster",
        required=cluster_default is None,
        default=cluster_default,
        help="2x8 (hosts x GPUs), a YAML file of hosts, local[:SLOTS] for this machine's own facts, or ray for the"
        " hosts of the Ray cluster at RAY_ADDRESS",
    )
    parser.add_argument(
        "--vllm-version", metavar="X", help="plan for this vLLM release (default: the one Vime knows best)"
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--moe", action="store_true", help="the model has experts (when its config.json cannot be read)")
    kind.add_argument("--dense", action="store_true", help="the model has none")
    parser.epilog = (
        "Trainer arguments may follow as flags (--rollout-num-gpus-per-engine 16 --vllm-max-model-len 4096), "
        "or a whole trainer command line after --. Flags win over --args."
    )


def planned(options: argparse.Namespace, ask: bool = False) -> LaunchPlan:
    """Return the plan that the options ask for; with ``ask``, engines of others are asked what they are.

    Raises PlanRefused.
    """
    vllm = arguments.load_catalogue(options.vllm_version)
    cluster = None if options.cluster == RAY else observed(options.cluster or "local")
    args = arguments.resolve(merged_arguments(options))
    models = kind_of_model(options) or arguments.read_model_facts(args)
    if cluster is None:
        from vime_adapters.bring_up import cluster_of_ray  # what runs fleets is not needed to plan for other hosts

        cluster = cluster_of_ray(slots_wanted(args, vllm=vllm))
    external = arguments.ask_external(args) if ask else None
    seen = read_checkpoints(args)
    return make_plan(args, cluster, vllm=vllm, models=models, external=external, checkpoints=seen)


def kind_of_model(options: argparse.Namespace) -> ModelFacts | None:
    """Return what the options say of every model; None when they say nothing."""
    return ModelFacts(moe=options.moe) if options.moe or options.dense else None


def merged_arguments(options: argparse.Namespace) -> Mapping[object, object]:
    """Return the arguments of the file, overlaid with those given as flags."""
    vllm = arguments.load_catalogue(options.vllm_version)
    given = arguments.load_arguments(options.args) if options.args is not None else {}
    found: dict[object, object] = {}
    for key, value in given.items():
        name = key.replace("-", "_") if isinstance(key, str) else key
        if name in found:
            raise PlanRefused((Problem(Code.EXCLUSIVE, str(name), key, "one spelling of an argument"),))
        found[name] = value
    found.update(arguments.parse_flags(options.trainer_flags, vllm))
    return found


def plan_file(options: argparse.Namespace) -> Path | None:
    """Return the plan file that stands where a trainer's flags would, or None when a plan is to be made.

    As a positional of its own it would swallow the value of one of those flags. What follows ``--`` is a trainer's
    command line and never a plan. Raises PlanRefused for a file beside anything to make a plan from.
    """
    words = options.words
    if not words or words[0].startswith("-"):
        return None
    given = [*options.trainer_flags[1:]]
    given += [f"{name} {value}" for name in ("args", "cluster", "vllm_version") if (value := getattr(options, name))]
    if given:
        found = f"{words[0]} beside {' '.join(given)}"
        raise PlanRefused((Problem(Code.EXCLUSIVE, "PLAN", found, "a plan, or what to make one from"),))
    return Path(words[0])
