import os
import sys
import time
from pathlib import Path

import pytest

from allranks.images.child_process import child, lines_of
from allranks.interruption import checked_by


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


def interrupt_at_the_first_line(command):
    with child(command) as process:
        for _ in lines_of(process):
            raise KeyboardInterrupt


def test_what_a_child_has_started_ends_with_it_though_it_ignores_the_first_signal(tmp_path):
    program = (
        f"trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > {tmp_path}/pid; echo started; sleep 600' & wait; sleep 600"
    )
    with pytest.raises(KeyboardInterrupt):
        interrupt_at_the_first_line(["sh", "-c", program])
    state = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    deadline = time.monotonic() + 10
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_silent_child_ends_as_soon_as_its_work_has_to():
    def late():
        if time.monotonic() > began + 0.3:
            raise TimeoutError

    began = time.monotonic()
    with pytest.raises(TimeoutError), checked_by(late), child(["sleep", "600"]) as process:
        list(lines_of(process))
    assert time.monotonic() < began + 10
    assert process.returncode is not None
