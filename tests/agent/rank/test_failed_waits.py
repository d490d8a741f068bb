"""Which failed waits of a rank count, and which exceptions have a wait."""

import json
import subprocess
import sys
from pathlib import Path

import failed_waits
import pytest

COUNTING = {"swallows", "expects_something_else", "polls_a_store", "polls_a_number"}
COUNTING |= {"expects_something_of_its_own_after_a_wait"}
FAILED = {"waits_for_a_key", "waits_for_several_keys", "waits_for_a_server"}


@pytest.fixture(scope="module")
def found():
    """What the helper program prints."""
    command = [sys.executable, str(Path(failed_waits.__file__))]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("name", failed_waits.ACTS)
def test_an_unexpected_failure_of_a_wait_counts(found, name):
    assert found[name] == (name in COUNTING)


@pytest.mark.parametrize("name", failed_waits.FAILING)
def test_an_exception_has_a_wait_if_the_call_took_long_enough(found, name):
    assert found[name] == (name in FAILED)
