"""Reading of a decode engine's numbers whether blocks came to it."""

import pytest

from vime_adapters.vllm.transfer import Transfers, transfers

LABELS = 'engine="0",model_name="m"'


def told(asked: float = 0, found: float = 0, replica: int = 0) -> str:
    """Say what vLLM 0.32 says of one replica with a KV connector."""
    labels = f'{{engine="{replica}",model_name="m"}}'
    return (
        "# TYPE vllm:external_prefix_cache_hits counter\n"
        f"vllm:external_prefix_cache_queries_total{labels} {float(asked)}\n"
        f"vllm:external_prefix_cache_queries_created{labels} 1.7e+09\n"
        f"vllm:external_prefix_cache_hits_total{labels} {float(found)}\n"
        f'vllm:nixl_bytes_transferred_bucket{{engine="{replica}",le="+Inf"}} 9.0\n'
        f"vllm:nixl_bytes_transferred_sum{labels} {found * 10}\n"
        f"vllm:nixl_bytes_transferred_count{labels} 2.0\n"
        f"vllm:nixl_num_failed_transfers_total{labels} 0.0\n"
        f'vllm:cache_config_info{{block_size="128",cache_dtype="auto",engine="{replica}"}} 1.0\n'
    )


def test_one_replica():
    """The numbers of one replica and its block size."""
    assert transfers(told(71, 64)) == Transfers(71.0, 64.0, 0.0, 640.0, 2.0, 128)


def test_replicas_are_added_up():
    """An engine's numbers are those of all its replicas."""
    found = transfers(told(10, 4) + told(5, 5, replica=1))
    assert found is not None
    assert (found.asked, found.found, found.transfers) == (15.0, 9.0, 4.0)


@pytest.mark.parametrize("text", ["", "vllm:num_requests_running{} 1.0\n", "<html>"])
def test_nothing_told(text: str):
    """An engine without a KV connector, or without statistics, tells nothing."""
    assert transfers(text) is None


def test_no_block_size():
    """An engine may not tell its block size."""
    assert transfers('vllm:external_prefix_cache_queries_total{engine="0"} 1.0\n') == Transfers(asked=1.0)


def test_since():
    """What came since is the difference, and everything where the engine was started again meanwhile."""
    before, now = Transfers(10, 8, 1, 100, 3, 128), Transfers(25, 20, 1, 300, 5, 128)
    assert now.since(before) == Transfers(15, 12, 0, 200, 2, 128)
    assert Transfers(5, 5).since(before) == Transfers(5, 5)
