"""What a hostile suite can reach, by walking /proc: it names no file and no descriptor of the harness.

On the process engine a suite keeps to its own job, because the host is not the victim; in a container it may try all.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

Attack = TypeVar("Attack", bound=Callable[..., None])

IN_CONTAINER = os.environ["HOSTILE_ENGINE"] == "docker"


def attack(*_ranks: str, **_more: object) -> Callable[[Attack], Attack]:
    """Declare a case and its expected outcome (see truth.py): the function becomes the test ``test_attack``."""
    return lambda function: function


TESTS = (
    "test_0_before.py::test_victim",
    "test_0_before.py::test_honest",
    "test_1_attack.py::test_attack",
    "test_2_after.py::test_after",
)

BAD_WORDS = re.compile(rb"failed|errored|crashed|timed_out|aborted|missing|failure|error")

MIB = 1 << 20


def better(data: bytes) -> bytes:
    """The same bytes with every outcome a pass."""
    return BAD_WORDS.sub(b"passed", data)


def worse(data: bytes) -> bytes:
    """The same bytes with every pass a failure."""
    return data.replace(b"passed", b"failed")


def pids() -> list[int]:
    """The other processes that belong to this job, parents first."""
    found = sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in found if pid != os.getpid() and (IN_CONTAINER or _is_of_this_job(pid))]


def ancestors() -> list[int]:
    """The parent, its parent, and so on, as far as they belong to this job."""
    mine, found, pid = set(pids()), [], os.getppid()
    while pid in mine:
        found.append(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    return found


def _is_of_this_job(pid: int) -> bool:
    """Whether it has this job's own folder for temporary files."""
    with suppress(OSError):
        return f"TMPDIR={os.environ['TMPDIR']}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def descriptors(pid: int | str = "self") -> list[int]:
    """The descriptors that a process has above the standard ones; those of this one, too, but not of the listing."""
    with suppress(OSError):
        numbers = sorted(int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir())
        return [number for number in numbers if os.path.lexists(f"/proc/{pid}/fd/{number}")]
    return []


def own_descriptors() -> list[int]:
    """The descriptors of this process but the standard ones."""
    return [number for number in descriptors() if number > 2]


def write_own(data: bytes, numbers: Iterable[int] | None = None) -> None:
    """Write into each of these descriptors of this process what it takes without blocking."""
    for number in own_descriptors() if numbers is None else numbers:
        with suppress(OSError, ValueError):
            _write_all(number, data)


def write_into(pid: int, data: bytes) -> None:
    """Write into each descriptor of another process, by way of /proc, what it takes without blocking."""
    for number in descriptors(pid):
        with suppress(OSError):
            path = Path(f"/proc/{pid}/fd/{number}")
            if path.is_char_device():  # /dev/null, or a terminal
                continue
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_APPEND)
            try:
                _write_all(descriptor, data)
            finally:
                os.close(descriptor)


def _write_all(number: int, data: bytes) -> None:
    """Write until a full second has brought no progress."""
    blocking = os.get_blocking(number)
    os.set_blocking(number, False)
    try:
        for start in range(0, len(data), MIB):
            rest = data[start : start + MIB]
            for _ in range(200):
                try:
                    rest = rest[os.write(number, rest) :]
                except BlockingIOError:
                    _pause()
                if not rest:
                    break
            else:
                return
    finally:
        with suppress(OSError):
            os.set_blocking(number, blocking)


def _pause() -> None:
    import time

    time.sleep(0.005)


def lines(*messages: object) -> bytes:
    """The messages as lines of JSON, without and with the record separator of RFC 7464."""
    texts = [message if isinstance(message, str) else json.dumps(message) for message in messages]
    return "".join(f"{text}\n" for text in texts).encode() + "".join(f"\n\x1e{text}\n" for text in texts).encode()


def plausible() -> bytes:
    """Messages by which ranks pass every test of this suite, in forms that a harness may have."""
    ids = [f"suites/{Path(__file__).parent.name}/{test}" for test in TESTS]
    kinds = (("event", "arrived"), ("event", "phase"), ("kind", "outcome"), ("type", "outcome"), ("record", "outcomes"))
    return lines(
        *(
            {
                key: kind,
                "at": 1e9,
                "nodeid": test,
                "test": test,
                "rank": rank,
                "outcome": outcome,
                "outcomes": {"0": outcome, "1": outcome},
                "when": "call",
                "duration": 0.1,
                "message": "",
                "is_final": True,
                "early_skip": False,
                "consequence": False,
                "caused_by": None,
            }
            for (key, kind), test, rank, outcome in product(kinds, ids, (0, 1, 2, -1), ("passed", "skipped"))
        ),
        {"outcome": "passed", "message": "", "is_final": True},
        *({key: kind, "status": 0} for key in ("event", "kind", "type") for kind in ("agent_finished", "finished")),
    )


IMPLAUSIBLE = lines(
    {"event": ["x"], "at": 1},
    {"event": {"x": 1}, "at": "now"},
    {"event": "arrived", "at": None, "rank": "zero", "nodeid": 7, "outcome": ["passed"]},
    {"event": "collected", "at": -1e15, "tests": "all"},
    {"kind": None, "type": [], "record": {}},
    '{"event": "arrived", "at": 1e999}',
    '{"event": "arrived", "at": NaN, "rank": -Infinity}',
    '{"rank": ' + "9" * 5000 + "}",
    '{"event": "\\ud800", "rank": 1e308}',
    "[" * 100_000,
    '{"a":' * 20_000,
    "[]",
    "null",
    "0",
    '"passed"',
    "{}",
    "\x00\x00\x00",
    "\x1e\x1e\x1e",
    "{",
)
"""Messages of wrong types, numbers and depths."""

ENDLESS = b'\x1e{"event": "arrived", "text": "' + b"x" * (64 * MIB)
"""A line of 64 MiB that does not end."""


def harvest(limit: int = 64 * MIB) -> bytes:
    """Lines of JSON that lie in this process's memory and speak of outcomes."""
    found: set[bytes] = set()
    with suppress(OSError), Path("/proc/self/mem").open("rb", 0) as memory:
        for start, end in _writable_maps("self"):
            with suppress(OSError, OverflowError, ValueError):
                memory.seek(start)
                found.update(
                    re.findall(rb'\{"[ -~]{5,1000}?"outcome[ -~]{5,1000}?\}', memory.read(min(end - start, limit)))
                )
    return b"\n".join(sorted(found)[:2000]) + b"\n"


def _writable_maps(pid: int | str) -> Iterator[tuple[int, int]]:
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        bounds, rights, *_ = line.split()
        if rights.startswith("rw"):
            start, end = (int(bound, 16) for bound in bounds.split("-"))
            yield start, end


def overwrite_memory(pid: int) -> None:
    """Make every outcome that lies in another process's memory a pass."""
    with suppress(OSError), Path(f"/proc/{pid}/mem").open("r+b", 0) as memory:
        for start, end in _writable_maps(pid):
            with suppress(OSError, OverflowError, ValueError):
                memory.seek(start)
                data = memory.read(min(end - start, 64 * MIB))
                for place in re.finditer(rb"\bfailed\b", data):
                    memory.seek(start + place.start())
                    memory.write(b"passed")


def folders() -> list[Path]:
    """The folders of this job that it may write: all that its processes name, and those beside and around these."""
    if IN_CONTAINER:
        mounts = {Path(line.split()[1]) for line in Path("/proc/mounts").read_text().splitlines()}
        return [
            mount for mount in sorted(mounts) if mount.is_dir() and not re.match(r"/(proc|sys|dev)\b|/$", str(mount))
        ]
    scratch = Path(os.environ["TMPDIR"])  # the job's own
    while not scratch.name.startswith("allranks-job-"):
        if scratch == scratch.parent:
            msg = "the job has no scratch folder"
            raise RuntimeError(msg)
        scratch = scratch.parent
    return [scratch]


def files() -> list[Path]:
    """Every file that the job may write to but its code."""
    return [Path(root, name) for root, _, names in _walk() for name in names]


def results() -> list[Path]:
    """Every folder that the job may write to but its code."""
    return [Path(root) for root, _, _ in _walk() if os.access(root, os.W_OK)]


def _walk() -> Iterator[tuple[str, list[str], list[str]]]:
    for folder in folders():
        for root, names, files_ in os.walk(folder):
            names[:] = [name for name in names if name not in ("code", "agent", "shared")]
            yield root, names, files_


RESULT_NAMES = (
    *(f"rank-{rank}.{kind}" for rank in range(3) for kind in ("xml", "log", "stacks.txt")),
    *(f"events-{whose}.jsonl" for whose in ("0", "1", "agent")),
    *("job.json", "run.json", "journal.jsonl", "junit.xml", "report.json", "agent.log", "attempt-1", "attempt-2"),
)
"""What results are called."""


def rename(item: Any, nodeid: object) -> None:
    """Give a test another id, of whatever type, in any version of pytest."""
    item.__class__ = type("Renamed", (item.__class__,), {"nodeid": nodeid})


def daemonise() -> bool:
    """Fork a process that outlives its parent and is found by nothing but its number; true in it."""
    if child := os.fork():
        os.waitpid(child, 0)
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    return True
