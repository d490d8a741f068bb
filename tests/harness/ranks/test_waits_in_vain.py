"""Whether a rank's last wait for a peer was in vain, whatever has become of what it raised."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import vain_waits

IN_VAIN = {"swallows", "expects_something_else", "polls_a_store", "polls_a_number"}


@pytest.fixture(scope="module")
def found():
    command = [sys.executable, str(Path(vain_waits.__file__))]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("name", vain_waits.ACTS)
def test_a_wait_is_in_vain_that_failed_and_was_not_expected_to(found, name):
    assert (name in found) == (name in IN_VAIN)
