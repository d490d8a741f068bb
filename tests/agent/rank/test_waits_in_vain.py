"""Whether a rank's last wait was in vain, whatever became of what it raised, and which exceptions tell of a wait."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import vain_waits

IN_VAIN = {"swallows", "expects_something_else", "polls_a_store", "polls_a_number"}
IN_VAIN |= {"expects_something_of_its_own_after_a_wait"}
FAILED = {"waits_for_a_key", "waits_for_several_keys", "waits_for_a_server"}


@pytest.fixture(scope="module")
def found():
    command = [sys.executable, str(Path(vain_waits.__file__))]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("name", vain_waits.ACTS)
def test_a_wait_is_in_vain_that_failed_and_was_not_expected_to(found, name):
    assert found[name] == (name in IN_VAIN)


@pytest.mark.parametrize("name", vain_waits.FAILING)
def test_an_exception_tells_of_a_wait_if_the_call_had_taken_its_time(found, name):
    assert found[name] == (name in FAILED)
