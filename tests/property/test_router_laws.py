"""Laws of routers, of the urls they know, and of the order in which everything is started."""

from hypothesis import assume, given
from hypothesis import strategies as st
from tests.oracles.parser import parsed
from tests.oracles.slots import hosts_of
from tests.strategies.effort import effort
from tests.strategies.options import FREE_ROUTER, values_of
from tests.strategies.requests import Made, made

from vime_core import DEFAULT_ROUTER, Code
from vime_core.plan import Engine
from vime_core.vllm.catalogue import read

FREE_DESTS = sorted(flag.dest for flag in FREE_ROUTER)


def url(address: str, port: object) -> str:
    """Return the url of an address, IPv6 in brackets."""
    return f"http://[{address}]:{port}" if address.count(":") > 1 else f"http://{address}:{port}"


def engines_of(made: Made, model: str, *roles: str) -> list[Engine]:
    """Return a model's engines of some roles, in order."""
    return [e for e in made.plan.engines if e.model == model and e.role.value in roles]


class TestOneRouterEach:
    """Every model has exactly one router, in the models' order, and every router is of a model."""

    @given(made())
    def test_law(self, made: Made):
        """Read the models off the arguments."""
        config = made.story.args.get("vllm_config", {"vllm": [{"name": "default"}]})
        assert [router.model for router in made.plan.routers] == [model["name"] for model in config["vllm"]]


class TestEngineUrls:
    """An engine's url is the address of its head's host with the port that the head is told to serve on."""

    @given(made())
    def test_law(self, made: Made):
        """Put it together from the head's command line."""
        for engine in made.plan.engines:
            head = engine.processes[0]
            host, port = (head.argv[head.argv.index(flag) + 1] for flag in ("--host", "--port"))
            assert (host, engine.url) == (head.address, url(head.address, port))


class TestRegularRouters:
    """A regular router is to know every url of every regular engine of its model and starts without any."""

    @given(made())
    def test_law(self, made: Made):
        """Collect the heads in order; none of them is on the router's command line."""
        for router in made.plan.routers:
            if not router.pd:
                urls = [u for e in engines_of(made, router.model, "regular") for u in e.urls]
                assert list(router.worker_urls) == urls
                assert (router.prefill_urls, router.decode_urls) == ((), ())
                assert not {"--prefill", "--decode", "--worker-urls", "--vllm-pd-disaggregation"} & set(router.argv)


class TestPrefillDecodeRouters:
    """A model with prefill engines has a router that starts with all their urls and decode's, and registers none."""

    @given(made(forms=("short", "yaml")))
    def test_law(self, made: Made):
        """Collect the heads by role and compare them with the plan and with the router's own command line."""
        for router in made.plan.routers:
            prefill = [u for e in engines_of(made, router.model, "prefill") for u in e.urls]
            decode = [u for e in engines_of(made, router.model, "decode") for u in e.urls]
            assert router.pd == bool(prefill)
            if router.pd:
                assert router.worker_urls == ()
                assert [u for u, _ in router.prefill_urls] == prefill
                assert list(router.decode_urls) == decode
                told = parsed(DEFAULT_ROUTER, router.argv[1:])
                assert [group[0] for group in told["prefill"]] == prefill
                assert [u for group in told["decode"] for u in group] == decode
                assert "--vllm-pd-disaggregation" in router.argv
                given = any(name.endswith("disable_circuit_breaker") for name in made.story.args)
                assert told.get("disable_circuit_breaker") is True or given


class TestBootstrapPorts:
    """A router is given a bootstrap port for Mooncake alone: the very port that each prefill API is told to serve."""

    @given(made(forms=("short", "yaml")))
    def test_law(self, made: Made):
        """Look each head's variable up; with NIXL and strangers there is none."""
        for router in made.plan.routers:
            heads = [p for e in engines_of(made, router.model, "prefill") for p in e.processes if not p.headless]
            ports = [{v.name: v.value for v in head.env}.get("VLLM_MOONCAKE_BOOTSTRAP_PORT") for head in heads]
            assert [port and str(port) for _, port in router.prefill_urls] == ports


class TestRouterArgvParses:
    """Every router's command line parses under the router's release, by our reader and by a real parser alike."""

    @given(made())
    def test_law(self, made: Made):
        """Parse both ways."""
        for router in made.plan.routers:
            assert router.argv[0] == "vllm-router"
            assert parsed(DEFAULT_ROUTER, router.argv[1:]).keys() == read(DEFAULT_ROUTER, router.argv[1:]).keys()
            assert router.argv[router.argv.index("--host") + 1] == router.address


class TestRouterOptions:
    """Every router option reaches every router with the value as given, and ours gives way to the user's."""

    @effort(2)
    @given(made(), st.sampled_from(FREE_DESTS), st.data())
    def test_law(self, made: Made, dest: str, data: st.DataObject):
        """Give one more option and read it back from every router."""
        flag = DEFAULT_ROUTER.get(dest)
        value = data.draw(values_of(flag))
        for router in made.story.given(**{f"router_{dest}": value}).plan().routers:
            found = read(DEFAULT_ROUTER, router.argv[1:])
            if flag.valueless:
                assert found.get(dest, False) is (str(value).lower() == "true")
            elif isinstance(value, str | int | float):
                assert found[dest] == (str(value),)
            else:
                assert found.get(dest, ()) == tuple(map(str, value))


class TestGivenAddress:
    """The first router listens at the user's address and port, or the plan is refused; other routers go elsewhere."""

    @given(made(), st.data())
    def test_law(self, made: Made, data: st.DataObject):
        """Give the address of any host, with or without brackets, or its name."""
        host = data.draw(st.sampled_from(hosts_of(made.story.facts)))
        ip = data.draw(st.sampled_from([host["address"], f"[{host['address']}]", host["name"]]))
        story = made.story.given(vllm_router_ip=ip, vllm_router_port=9000, router_prometheus_port=None)
        if host.get("ephemeral_floor", 32768) <= 9000:
            assert story.codes() == {Code.PORT_TAKEN}
            return
        first, *others = story.plan().routers
        assert (first.node, first.url) == (host["name"], url(host["address"], 9000))
        assert all(router.url != first.url for router in others)

    @effort(0.5)
    @given(made(), st.sampled_from(["10.9.9.9", "fd00::9", "elsewhere", "127.0.0.1", "0.0.0.0"]))
    def test_elsewhere(self, made: Made, ip: str):
        """An address of no host is refused, and so is an address without a port."""
        story = made.story.given(vllm_router_ip=ip, vllm_router_port=8123)
        assert [(p.code, p.found) for p in story.problems()] == [(Code.ROUTER_ADDRESS, ip)]
        problems = made.story.given(vllm_router_ip=ip, vllm_router_port=None).problems()
        assert [(p.code, p.where) for p in problems] == [(Code.REQUIRED, "vllm_router_port")]


class TestPowerOfTwo:
    """power_of_two is refused for a prefill or decode stage of one url, and taken otherwise."""

    @given(made(), st.sampled_from(["vllm_router_policy", "router_policy", "router_prefill_policy"]))
    def test_law(self, made: Made, name: str):
        """Count the urls of each stage that the policy is for: replicas that are balanced outside have one each."""
        assume("vllm_router_policy" not in made.story.args and "router_policy" not in made.story.args)
        stages = ("prefill",) if name == "router_prefill_policy" else ("prefill", "decode")
        alone = any(
            sum(len(engine.urls) for engine in engines_of(made, router.model, stage)) < 2
            for router in made.plan.routers
            if router.pd
            for stage in stages
        )
        assert made.story.given(**{name: "power_of_two"}).codes() == ({Code.ROUTER_POLICY} if alone else set())


class TestStartOrder:
    """Every head goes into service behind its regular router, and a prefill/decode router behind all its heads."""

    @given(made())
    def test_law(self, made: Made):
        """Put the edges together from engines and routers; followers have none."""
        edges = []
        for router in made.plan.routers:
            for engine in engines_of(made, router.model, "regular", "prefill", "decode"):
                head = engine.processes[0].id
                edges.append((head, router.id) if router.pd else (router.id, head))
        assert list(made.plan.start_order) == edges


class TestStartOrderHasAStart:
    """The start order has no circle: whatever waits, waits for something that can start."""

    @given(made())
    def test_law(self, made: Made):
        """Start whatever waits for nobody until nothing is left."""
        names = {p.id for e in made.plan.engines for p in e.processes} | {r.id for r in made.plan.routers}
        left = set(names)
        while ready := {n for n in left if not any(b in left for b, a in made.plan.start_order if a == n)}:
            left -= ready
        assert not left
