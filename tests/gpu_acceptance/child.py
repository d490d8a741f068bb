"""Runs one part, in a process of its own: ``python -m gpu_acceptance.child NAME FOLDER MACHINE SECONDS IMAGE``.

The verdict is the file ``verdict.json`` of the folder. A part that has written none has proved nothing.
"""

import ctypes
import json
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path

from warden import adopt_orphans

from gpu_acceptance.bench import Bench
from gpu_acceptance.machine import Machine
from gpu_acceptance.parts import PARTS
from gpu_acceptance.verdict import TIME_UP, ImpossibleError, TimeUpError, WrongError

VERDICT = "verdict.json"

_PR_SET_PDEATHSIG = 1


def main(name: str, folder: Path, machine: Path, seconds: float, image: str) -> None:
    """Run the part of a name."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, _leave)  # what runs is then interrupted, and not just left
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    with suppress(OSError):  # the part about the kernel says so
        adopt_orphans()
    part = next(part for part in PARTS if part.name == name)
    there = Machine.from_json(machine.read_text())
    bench = Bench(machine=there, folder=folder, deadline=began + seconds, image=image, is_alone=part.is_alone)
    try:
        outcome, text = "proved", part.load()(bench)
    except ImpossibleError as error:
        outcome, text = "not possible here", str(error)
    except WrongError as error:
        outcome, text = "wrong", str(error)
    except TimeUpError as error:
        outcome, text = TIME_UP, str(error)
    except Exception as error:  # noqa: BLE001 - the part is at fault, and says so
        traceback.print_exc()
        outcome, text = "wrong", f"the part broke down: {type(error).__name__}: {error}"
    verdict = {"outcome": outcome, "text": text, "checks": bench.checks, "figure": bench.figure}
    draft = folder / f".{VERDICT}"
    draft.write_text(json.dumps(verdict))
    draft.rename(folder / VERDICT)


def _leave(number: int, _frame: object) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]), sys.argv[5])
