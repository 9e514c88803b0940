"""What a golden folder holds: the inputs of one story and the whole plan that they lead to.

``args.yaml`` and ``cluster.yaml`` are what `vime plan --args args.yaml --cluster cluster.yaml` takes, ``plan.json`` is
the canonical text, laid out for reading. ``tools/make_goldens.py`` writes all three from the cases marked golden.
"""

import json
from pathlib import Path

import yaml
from tests.cases.load import Case, cases

from vime_core import Cluster, render

HERE = Path(__file__).parent
COMMAND = "python tools/make_goldens.py"
WIDTH = 110
FILES = ("args.yaml", "cluster.yaml", "plan.json")


def stories() -> list[Case]:
    """Return the cases whose plans are kept whole."""
    return [case for case in cases() if case.golden]


def folders() -> list[str]:
    """Return the names of the golden folders that are there."""
    return sorted(path.parent.name for path in HERE.glob("*/plan.json"))


def texts(case: Case) -> dict[str, str]:
    """Return the files of a story by name."""
    kind = f" --{case.kind}" if case.kind else ""
    head = f"# {case.why}\n# vime plan --args args.yaml --cluster cluster.yaml{kind} --format json\n"
    facts = case.cluster if isinstance(case.cluster, dict) else spelled_out(Cluster.parse(case.cluster))
    return {
        "args.yaml": head + written(dict(case.arguments())),
        "cluster.yaml": written(facts),
        "plan.json": laid_out(json.loads(render(case.plan()))) + "\n",
    }


def laid_out(value: object, indent: int = 0) -> str:
    """Return JSON with everything on one line that fits on one, and one item a line of what does not."""
    line = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if len(line) + indent <= WIDTH or not isinstance(value, dict | list) or not value:
        return line
    deeper = indent + 1
    if isinstance(value, dict):
        items = [f"{json.dumps(k)}: {laid_out(value[k], deeper)}" for k in sorted(value)]
    else:
        items = [laid_out(item, deeper) for item in value]
    inside = (",\n" + " " * deeper).join(items)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{' ' * deeper}{inside}\n{' ' * indent}{closing}"


def spelled_out(cluster: Cluster) -> dict[str, object]:
    """Return the short form's hosts as a cluster file lists them."""
    return {"nodes": [{"name": n.name, "address": n.address, "gpus": len(n.gpus)} for n in cluster.nodes]}


def written(value: object) -> str:
    """Return a value as YAML, short things on one line."""
    return yaml.safe_dump(value, sort_keys=False, default_flow_style=None, width=120)
