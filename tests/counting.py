"""Counts the examples that random tests really ran, by Hypothesis' own account of each test."""

import re

import pytest


class Examples:
    """A pytest plugin: the examples of each random test, printed at the end; too few in sum fail the run.

    An example counts when the test's body ran through with it: those that Hypothesis gave up or that failed do not.
    """

    def __init__(self, least: int) -> None:
        self.least = least
        self.counts: dict[str, int] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item):
        """Read the text of ``--hypothesis-show-statistics``: one line for each phase that ran examples."""
        try:
            return (yield)
        finally:
            passed = re.findall(r"(\d+) passing", getattr(item, "hypothesis_statistics", ""))
            if passed:
                self.counts[item.nodeid] = sum(map(int, passed))

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self, report: pytest.TestReport):
        """Add the count to the test's line under ``-v``, so that a run that was broken off tells how far it came."""
        category, letter, word = yield
        if report.when == "call" and report.nodeid in self.counts:
            word = f"{word} {self.counts[report.nodeid]}"
        return category, letter, word

    @property
    def sum(self) -> int:
        """All examples so far."""
        return sum(self.counts.values())

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that passed otherwise and tried too little."""
        if session.exitstatus == pytest.ExitCode.OK and self.sum < self.least:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print a line for each test and the sum."""
        terminalreporter.section("examples")
        for nodeid, count in self.counts.items():
            terminalreporter.line(f"{count:9,} {nodeid}")
        short = f", short of {self.least:,}" * (self.sum < self.least)
        terminalreporter.line(f"{self.sum:9,} examples passed in {len(self.counts)} random tests{short}")
