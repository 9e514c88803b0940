"""KV connectors as data: which ports a head needs, by which variables it learns them, and what the router must know.

Sources: vLLM's NIXL connector binds one side channel per engine core at VLLM_NIXL_SIDE_CHANNEL_PORT plus the
data-parallel index. Its Mooncake connector serves a bootstrap port in every engine that is not a kv_consumer
(mooncake_connector.py), and the router asks that of prefill engines. Names: distributed/kv_transfer/kv_connector/
factory.py of 0.32. MultiConnector holds others, each with a configuration of its own (multi_connector.py).
"""

import json
from collections.abc import Mapping
from difflib import get_close_matches

from attrs import frozen

from vime_core.plan import Role
from vime_core.vllm.numbers import plain_json


@frozen
class Connector:
    """What one family of KV connectors needs from a launch.

    ``host_env`` / ``port_env`` tell a head where to listen; a family without ``port_env`` listens at no planned port.
    When ``per_dp_rank``, a replica listens at the base plus its own index, so the interval spans one port per replica,
    and followers, which run replicas too, get an interval of their own. With ``bootstrap`` the router is given the port
    of every prefill head, and engines that only consume serve none. ``router_name`` is the router's --kv-connector
    choice. With ``discovery`` the router refuses a pool that is fixed at its start: engines must announce themselves.
    """

    name: str
    use: str
    host_env: str | None
    port_env: str
    per_dp_rank: bool
    bootstrap: bool
    router_name: str
    discovery: bool = False


NIXL = Connector(
    "NIXL",
    "nixl",
    "VLLM_NIXL_SIDE_CHANNEL_HOST",
    "VLLM_NIXL_SIDE_CHANNEL_PORT",
    per_dp_rank=True,
    bootstrap=False,
    router_name="nixl",
)
MOONCAKE = Connector(
    "Mooncake",
    "mooncake_bootstrap",
    None,
    "VLLM_MOONCAKE_BOOTSTRAP_PORT",
    per_dp_rank=False,
    bootstrap=True,
    router_name="mooncake",
)
MORIIO = Connector("MoRIIO", "moriio", None, "", False, bootstrap=False, router_name="moriio", discovery=True)
"""Its ports stand in kv_connector_extra_config, which is the user's."""

FAMILIES: Mapping[str, Connector] = {
    "NixlConnector": NIXL,
    "NixlPullConnector": NIXL,
    "NixlPushConnector": NIXL,
    "MooncakeConnector": MOONCAKE,
    "MoRIIOConnector": MORIIO,
}
"""vLLM's connector class -> its family."""

MULTI = "MultiConnector"
PORTLESS = frozenset(
    {
        "DecodeBenchConnector",
        "ExampleConnector",
        "ExampleHiddenStatesConnector",
        "FlexKVConnectorV1",
        "HF3FSKVConnector",
        "HiSparseConnector",
        "LMCacheConnectorV1",
        "LMCacheMPConnector",
        "MooncakeStoreConnector",
        MULTI,
        "OffloadingConnector",
        "SimpleCPUOffloadConnector",
    }
)
"""Connectors that vLLM registers and that need no port of the plan."""

RENAMED: Mapping[str, str] = {"SharedStorageConnector": "ExampleConnector"}
"""Names that vLLM no longer registers -> the one it has now."""

DEFAULT_ROLE: Mapping[Role, str] = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}


LEASE = 300
"""Seconds for which a prefill engine keeps a prompt's blocks until a decode engine has read them.

vLLM's own is 30 (``kv_lease_duration``, read in vLLM 0.32.0). When it runs out the blocks are given to other prompts,
and a decode engine that was held up for longer, by a weight sync or by a busy host, reads what is there then: other
tokens and no error (seen on CPU: one answer in some hundreds). Decode engines extend it while they run their loop.
"""


def default_config(role: Role) -> str:
    """Return the --kv-transfer-config text that a prefill or decode engine gets when the user gave none."""
    extra = {"kv_lease_duration": LEASE}
    return json.dumps(
        {"kv_connector": "NixlConnector", "kv_role": DEFAULT_ROLE[role], "kv_connector_extra_config": extra}
    )


def encoder_config(model: str, role: Role, urls: tuple[str, ...]) -> str:
    """Return the --ec-transfer-config text of one engine of a model that has encoder engines at ``urls``.

    vLLM's example connector hands encoder outputs over through a folder; encoders write, regular and prefill engines
    read and are told where the encoders are.
    """
    extra: dict[str, object] = {"shared_storage_path": f"/tmp/vime-encoder-cache-{model}"}  # noqa: S108 - a default
    if role is not Role.ENCODER:
        extra["encoder_urls"] = list(urls)
    ec_role = "ec_producer" if role is Role.ENCODER else "ec_consumer"
    return json.dumps({"ec_connector": "ECExampleConnector", "ec_role": ec_role, "ec_connector_extra_config": extra})


def json_value(value: object) -> object:
    """Return what a JSON-valued option says: the value itself, or what its text parses to (None when it does not)."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(plain_json(value))
    except (ValueError, RecursionError):
        return None


def configs_of(config: object) -> tuple[Mapping[object, object], ...]:
    """Return the configurations that a --kv-transfer-config value holds: its own, or those inside a MultiConnector.

    What is not understood holds none. A child without a kv_role of its own is refused by vLLM; here it has the outer
    one, so that nothing is missed.
    """
    value = json_value(config)
    if not isinstance(value, Mapping):
        return ()
    if value.get("kv_connector") != MULTI or value.get("kv_connector_module_path"):
        return (value,)
    extra = json_value(value.get("kv_connector_extra_config"))
    children = extra.get("connectors") if isinstance(extra, Mapping) else None
    listed = children if isinstance(children, list | tuple) else ()
    return tuple({"kv_role": value.get("kv_role"), **child} for child in listed if isinstance(child, Mapping))


def families_of(config: object) -> tuple[tuple[Connector, Mapping[object, object]], ...]:
    """Return the families that a --kv-transfer-config value names, each with the configuration that names it."""
    named = ((FAMILIES.get(str(one.get("kv_connector"))), one) for one in configs_of(config))
    return tuple((family, one) for family, one in named if family is not None)


def connector_of(config: object) -> Connector | None:
    """Return the first family that a --kv-transfer-config value names; None for others and what is not understood."""
    return next((family for family, _ in families_of(config)), None)


def leases_briefly(config: object) -> bool:
    """Whether a NIXL configuration leaves the lease on a prompt's blocks to vLLM, whose is short; see `LEASE`."""
    for family, own in families_of(config):
        extra = json_value(own.get("kv_connector_extra_config"))
        if family is NIXL and not (isinstance(extra, Mapping) and "kv_lease_duration" in extra):
            return True
    return False


def listens(config: object, role: Role) -> bool:
    """Whether an engine with this configuration listens at a planned port.

    NIXL always does. A bootstrap server runs wherever kv_role is not kv_consumer, whatever the group's role; prefill
    engines count as having one, since a consumer among them is refused.
    """
    family, own = next(iter(families_of(config)), (None, {}))
    if family is None or not family.port_env:
        return False
    return not family.bootstrap or role is Role.PREFILL or own.get("kv_role") != "kv_consumer"


def unregistered(config: object) -> tuple[tuple[str, str | None], ...]:
    """Return the connectors of a configuration that vLLM cannot find, each with the nearest name that it can."""
    found = []
    for one in (json_value(config), *configs_of(config)):
        name = one.get("kv_connector") if isinstance(one, Mapping) else None
        if not isinstance(one, Mapping) or not isinstance(name, str) or one.get("kv_connector_module_path"):
            continue
        if name not in FAMILIES and name not in PORTLESS:
            near = get_close_matches(name, (*FAMILIES, *sorted(PORTLESS)), 1, 0.6)
            found.append((name, RENAMED.get(name) or next(iter(near), None)))
    return tuple(dict.fromkeys(found))
