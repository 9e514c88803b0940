"""Version rules of vLLM: what became of a flag, which behaviours a release has, and whose catalogue stands in."""

import pytest

from vime_core.vllm.releases import (
    ADDED,
    DEPRECATED,
    OLDEST,
    REMOVED,
    Fact,
    arrival,
    borrowed,
    deprecation,
    holds,
    nearest,
    numbers,
    replacement,
)

KNOWN = ("0.27.0", "0.27.1", "0.32.0", "0.33.0")


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.32.0", (0, 32, 0)),
        ("0.32.0+cpu", (0, 32, 0)),
        ("0.33", (0, 33, 0)),
        ("1", (1, 0, 0)),
        ("0.33.1rc2.dev5+g12ab", (0, 33, 1)),
    ],
)
def test_a_release_is_three_numbers(version: str, expected: tuple[int, int, int]) -> None:
    """Local versions, pre-releases and short forms compare by their numbers."""
    assert numbers(version) == expected


@pytest.mark.parametrize("version", ["", "main", "v0.32.0", "٣.1"])
def test_a_text_that_is_no_release_is_refused(version: str) -> None:
    """What does not start with a number is named in the error."""
    with pytest.raises(ValueError, match="no release"):
        numbers(version)


def test_releases_do_not_compare_as_texts() -> None:
    """0.9 is older than 0.21, though its text sorts after it."""
    assert replacement("enable_bf16x3_router_gemm", "0.9.2") is None


def test_a_renamed_flag_names_its_successor() -> None:
    """From the release that renamed it on, the new name is given; before, nothing."""
    dest = "enable_mamba_fine_grained_prefix_cache"
    told = replacement(dest, "0.31.0")
    assert told is not None
    assert "use enable_mamba_shared_prefix_checkpoint" in told
    assert "0.31.0" in told
    assert replacement(dest, "0.30.0") is None


def test_a_flag_that_is_simply_gone_says_so() -> None:
    """Without a successor the answer says that there is none."""
    told = replacement("calculate_kv_scales", "0.33.0")
    assert told is not None
    assert "nothing takes its place" in told


def test_flags_gone_before_the_oldest_release_are_known() -> None:
    """Names from older releases have an answer in every release that was read."""
    assert "enable_log_requests" in str(replacement("disable_log_requests", OLDEST))
    assert "eplb_config" in str(replacement("num_redundant_experts", "0.33.0"))


def test_a_living_or_unknown_flag_has_no_replacement() -> None:
    """Nothing is said of flags that did not go."""
    assert replacement("tensor_parallel_size", "0.33.0") is None
    assert replacement("no_such_flag", "0.33.0") is None


def test_a_flag_of_a_later_release_tells_when_it_came() -> None:
    """Planning for an older release, a newer flag is told from a misspelt one."""
    assert arrival("enable_scale_out", "0.29.0") == "new in vLLM 0.30.0"
    assert arrival("enable_scale_out", "0.30.0") is None
    assert arrival("tensor_parallel_size", "0.21.0") is None


def test_deprecated_flags_tell_why_from_their_release_on() -> None:
    """A flag that is still accepted and does nothing says so, and not before that release."""
    assert deprecation("disable_cascade_attn", "0.32.0") == "it has no effect"
    assert deprecation("disable_cascade_attn", "0.31.0") is None
    assert deprecation("tensor_parallel_size", "0.33.0") is None


@pytest.mark.parametrize(
    ("fact", "before", "after"),
    [
        (Fact.SCALE_OUT_GATED, "0.29.0", "0.30.0"),
        (Fact.START_RANK_ZERO_IS_HYBRID, "0.27.1", "0.28.0"),
        (Fact.FINISH_UPDATE_TAKES_VERSION, "0.26.0", "0.27.0"),
        (Fact.ROUTED_EXPERTS_NEED_V2, "0.30.0", "0.31.0"),
        (Fact.SLEEP_ASKS_CONNECTOR, "0.32.0", "0.33.0"),
        (Fact.OPPOSITE_SPELLINGS, "0.32.0", "0.33.0"),
    ],
)
def test_a_behaviour_starts_with_its_release(fact: Fact, before: str, after: str) -> None:
    """The last release without it and the first with it are told apart, and it lasts in releases to come."""
    assert not holds(fact, before)
    assert holds(fact, after)
    assert holds(fact, "0.99.0")


@pytest.mark.parametrize(
    ("fact", "last", "first_without"),
    [
        (Fact.RANK_OVERWRITTEN_BY_NODE_RANK, "0.30.0", "0.31.0"),
        (Fact.START_UPDATE_TAKES_FORMAT, "0.24.0", "0.25.0"),
        (Fact.KV_TRANSFER_ADDRESSES, "0.31.0", "0.32.0"),
        (Fact.RAY_STORE_PORT_WINDOW, "0.28.0", "0.29.0"),
    ],
)
def test_a_behaviour_ends_before_its_release(fact: Fact, last: str, first_without: str) -> None:
    """The release named as the end no longer has it."""
    assert holds(fact, last)
    assert not holds(fact, first_without)


def test_what_is_older_than_the_oldest_release_holds_for_older_ones() -> None:
    """A release before those that were read is answered for like the oldest of them."""
    assert holds(Fact.NIXL_PORT_PLUS_INDEX, "0.14.0")
    assert not holds(Fact.RAY_STORE_PORT_WINDOW, "0.14.0")


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.32.0", "0.32.0"),
        ("0.32.0+cpu", "0.32.0"),
        ("0.34.1", "0.33.0"),
        ("0.28.0", "0.27.1"),
        ("0.27.2", "0.27.1"),
        ("0.10.0", "0.27.0"),
    ],
)
def test_the_nearest_catalogue(version: str, expected: str) -> None:
    """The same release, else the newest before it, else the oldest there is; the order given does not matter."""
    assert nearest(version, KNOWN) == expected
    assert nearest(version, reversed(KNOWN)) == expected


def test_no_catalogue_at_all_is_an_error() -> None:
    """Nothing can be the nearest of nothing."""
    with pytest.raises(ValueError, match="empty"):
        nearest("0.32.0", ())


def test_a_borrowed_catalogue_comes_with_a_note() -> None:
    """The note tells a newer release from one that was skipped, and a release of its own gets none."""
    assert borrowed("0.33.0+cu129", iter(KNOWN)) is None
    assert "newer than any known" in str(borrowed("0.34.0", KNOWN))
    assert "not among the known" in str(borrowed("0.28.0", KNOWN))
    assert "those of 0.27.1" in str(borrowed("0.28.0", KNOWN))


def test_every_entry_says_where_it_is_seen_and_its_range_is_one() -> None:
    """No rule is without a source, and none ends before it starts."""
    for rule in (*(fact.value for fact in Fact), *DEPRECATED.values()):
        assert rule.says
        assert rule.seen
        assert rule.until is None or numbers(rule.since) < numbers(rule.until)
    assert all(removal.why for removal in REMOVED.values())
    assert all(numbers(since) > numbers(OLDEST) for since in ADDED.values())
