"""KV connectors as data: which ports a head needs, by which variables it learns them, and what the router must know.

Sources: vLLM's NIXL connector binds one side channel per engine core at VLLM_NIXL_SIDE_CHANNEL_PORT plus the
data-parallel index; its Mooncake connector serves a bootstrap port on the prefill side that the router asks at start.
"""

import json
from collections.abc import Mapping

from attrs import frozen

from vime_core.plan import Role


@frozen
class Connector:
    """What one family of KV connectors needs from a launch.

    ``host_env`` / ``port_env`` tell a head where to listen. When ``per_dp_rank``, a replica listens at the base plus
    its own index, so the interval spans one port per replica, and followers, which run replicas too, get an interval of
    their own. ``roles`` are those that listen. With ``bootstrap`` the router is given the port of every prefill head.
    ``router_name`` is the router's --kv-connector choice.
    """

    name: str
    use: str
    host_env: str | None
    port_env: str
    per_dp_rank: bool
    roles: frozenset[Role]
    bootstrap: bool
    router_name: str


_BOTH = frozenset({Role.PREFILL, Role.DECODE, Role.REGULAR})
NIXL = Connector(
    "NIXL",
    "nixl",
    "VLLM_NIXL_SIDE_CHANNEL_HOST",
    "VLLM_NIXL_SIDE_CHANNEL_PORT",
    per_dp_rank=True,
    roles=_BOTH,
    bootstrap=False,
    router_name="nixl",
)
MOONCAKE = Connector(
    "Mooncake",
    "mooncake_bootstrap",
    None,
    "VLLM_MOONCAKE_BOOTSTRAP_PORT",
    per_dp_rank=False,
    roles=frozenset({Role.PREFILL}),
    bootstrap=True,
    router_name="mooncake",
)
FAMILIES: Mapping[str, Connector] = {
    "NixlConnector": NIXL,
    "NixlPullConnector": NIXL,
    "NixlPushConnector": NIXL,
    "MooncakeConnector": MOONCAKE,
}
"""vLLM's connector class -> its family."""

DEFAULT_ROLE: Mapping[Role, str] = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}


def default_config(role: Role) -> str:
    """Return the --kv-transfer-config text that a prefill or decode engine gets when the user gave none."""
    return json.dumps({"kv_connector": "NixlConnector", "kv_role": DEFAULT_ROLE[role]})


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
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def connector_of(config: object) -> Connector | None:
    """Return the family that a --kv-transfer-config value names; None for others and for what is not understood."""
    value = json_value(config)
    name = value.get("kv_connector") if isinstance(value, Mapping) else None
    return FAMILIES.get(name) if isinstance(name, str) else None
