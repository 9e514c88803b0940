"""Lets pytest explain the contract's assertions although it is not itself a test module."""

import pytest

pytest.register_assert_rewrite("tests.contract.bench", "tests.contract.executor_contract")
