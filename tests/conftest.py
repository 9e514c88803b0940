"""Settings of the random tests, chosen by HYPOTHESIS_PROFILE (see tests/README.md).

``ci`` tries the same few examples every time, so that a failure is never a matter of luck; the others try new ones.
"""

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from tests.counting import Examples

pytest.register_assert_rewrite("tests.integration.standins")

PROFILES = {"ci": 20, "tenfold": 200, "nightly": 800, "thorough": 4000}
"""Examples of a law, unless it asks for more or fewer with ``tests.strategies.effort``."""

for name, examples in PROFILES.items():
    settings.register_profile(
        name,
        max_examples=examples,
        derandomize=name == "ci",
        database=None,
        deadline=None,
        print_blob=True,
        phases=[Phase.explicit, Phase.generate, Phase.target, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of ``make nightly``."""
    parser.addoption(
        "--examples", type=int, metavar="LEAST", help="count examples; fewer than LEAST in sum is a failure"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Count when asked to."""
    least = config.getoption("--examples")
    if least is not None:
        config.pluginmanager.register(Examples(least))
