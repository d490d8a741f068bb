import os
import sys

import pytest

from allranks.images.child_process import child, lines_of


def test_output_and_errors_come_as_lines():
    program = "import sys; print('out', flush=True); print('err', file=sys.stderr)"
    with child([sys.executable, "-c", program], environ=os.environ) as process:
        assert list(lines_of(process)) == ["out", "err"]
    assert process.returncode == 0


def test_an_interrupt_ends_the_child():
    with (
        pytest.raises(KeyboardInterrupt),
        child([sys.executable, "-c", "import time; time.sleep(600)"], environ=os.environ) as process,
    ):
        raise KeyboardInterrupt
    assert process.wait(timeout=10) < 0
