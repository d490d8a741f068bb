"""torch's exit codes for skipped tests, and the installed torch's own table of them.

In torch's own test cases, a rank that cannot run a test exits with one of these codes, and its launcher derives the
reason from the code. The numbers are those of ``TEST_SKIPS`` in ``torch/testing/_internal/common_distributed.py``,
which takes a second to import and is absent without torch; this module needs only the standard library. The installed
torch's table takes precedence (:func:`installed_skips`), because codes and messages differ between versions, and newer
versions may have additional codes. That module is parsed and never imported, because its import changes global state.
"""

import ast
import functools
import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final

from allranks.protocol.outcomes import SkipKind


class SkipCode(IntEnum):
    """An exit code that reports a skipped test, and its reason."""

    BACKEND_UNAVAILABLE = 72
    SMALL_WORLD_SIZE = 73
    NO_CUDA = 74
    MULTI_GPU_1 = 75
    NO_NCCL = 76
    MULTI_GPU_2 = 77
    ROCM = 78
    NO_PEER_ACCESS = 79
    MULTI_GPU_3 = 80
    MULTI_GPU_4 = 81
    MULTI_GPU_5 = 82
    MULTI_GPU_6 = 83
    MULTI_GPU_7 = 84
    MULTI_GPU_8 = 85
    GENERIC = 86
    ODD_WORLD_SIZE = 87
    MISSING_IMPORT = 88
    NO_ACCELERATOR = 89


_MULTI_GPU = tuple(code for code in SkipCode if code.name.startswith("MULTI_GPU"))

_GPUS_NEEDED = MappingProxyType(
    {
        SkipCode.NO_CUDA: 1,
        SkipCode.NO_PEER_ACCESS: 2,
        SkipCode.NO_ACCELERATOR: 1,
        **{code: n for n, code in enumerate(_MULTI_GPU, start=1)},
    }
)
"""The codes of hardware skips, with the smallest number of GPUs (or other accelerators) that the test needs."""

_REASONS = MappingProxyType(
    {
        SkipCode.BACKEND_UNAVAILABLE: "the backend that this test needs is not available here",
        SkipCode.SMALL_WORLD_SIZE: "the world is too small for this test",
        SkipCode.NO_CUDA: "no CUDA device is visible",
        SkipCode.NO_NCCL: "this torch is built without NCCL",
        SkipCode.ROCM: "this test does not apply to ROCm",
        SkipCode.NO_PEER_ACCESS: "the GPUs cannot reach each other's memory",
        SkipCode.GENERIC: "the rank skipped without a specific reason",
        SkipCode.ODD_WORLD_SIZE: "this test needs an even number of ranks",
        SkipCode.MISSING_IMPORT: "a package that this test imports is not installed",
        SkipCode.NO_ACCELERATOR: "no accelerator is visible",
        SkipCode.MULTI_GPU_1: "fewer than 1 GPU is visible",
        **{code: f"fewer than {n} GPUs are visible" for n, code in enumerate(_MULTI_GPU[1:], start=2)},
    }
)

_SANDCASTLE_LINE = re.compile(r"^Skipping \S.* on sandcastle for (?:the )?following reason:(.*)$", re.MULTILINE)


_TEXTS = tuple(
    (re.compile(pattern, re.IGNORECASE).fullmatch, code)
    for pattern, code in (
        (r".*distributed backend is not available", SkipCode.BACKEND_UNAVAILABLE),
        (r"c10d was not compiled with the (?!nccl)\w+ backend", SkipCode.BACKEND_UNAVAILABLE),
        (r"skipped .*small world ?size", SkipCode.SMALL_WORLD_SIZE),
        (r"skipped .*odd world ?size", SkipCode.ODD_WORLD_SIZE),
        (r"cuda is not available", SkipCode.NO_CUDA),
        (r"c10d (?:was )?not compiled with (?:the )?nccl (?:support|backend)", SkipCode.NO_NCCL),
        (r"test skipped for rocm", SkipCode.ROCM),
        (r"test skipped .*no gpu peer access", SkipCode.NO_PEER_ACCESS),
        (r"test skipped at subprocess level.*", SkipCode.GENERIC),
        (r"test skipped .*missing import", SkipCode.MISSING_IMPORT),
        (r"accelerator is not available", SkipCode.NO_ACCELERATOR),
    )
)
"""The texts of torch's own runner for its codes, in the spellings of all versions."""


_GPUS_TEXT = re.compile(r"need at least ([1-9][0-9]{0,5}) cuda devices?", re.IGNORECASE)


@functools.lru_cache
def skip_of_text(text: str) -> tuple[SkipCode, int | None] | None:
    """The code and :func:`gpus_needed` for a skip reason of torch's own runner; None if it is not in torch's table."""
    text = text.strip().rstrip(".")
    if gpus := _GPUS_TEXT.fullmatch(text):
        return multi_gpu(int(gpus[1])), int(gpus[1])
    code = next((code for matches, code in _TEXTS if matches(text)), None)
    return None if code is None else (code, gpus_needed(code))


def reason(code: SkipCode, gpus: int | None = None) -> str:
    """The reason of a skip as one clause; ``gpus`` is the number of GPUs that the test needs, if the code lacks it."""
    return f"fewer than {gpus} GPUs are visible" if gpus and code in _MULTI_GPU[1:] else _REASONS[code]


def kind(code: SkipCode) -> SkipKind:
    """:attr:`SkipKind.HARDWARE` for missing GPUs, or else :attr:`SkipKind.ENVIRONMENT`."""
    return SkipKind.HARDWARE if code in _GPUS_NEEDED else SkipKind.ENVIRONMENT


def gpus_needed(status: int) -> int | None:
    """The number of GPUs (or other accelerators) that the skipped test needs; None if this is no hardware skip."""
    if status in set(SkipCode):
        return _GPUS_NEEDED.get(SkipCode(status))
    skip = installed_skips().get(status) if status > 0 else None
    return skip.gpus_needed if skip else None


def reason_of_exit(status: int) -> str | None:
    """Why a rank that ended with this exit status skipped; None if the status does not mean a skip.

    The text comes from the installed torch's table if it has the code.

    Args:
        status: As :func:`os.waitstatus_to_exitcode` returns it (negative: a signal), or the argument of ``sys.exit``.
    """
    if status <= 0:
        return None
    if (skip := installed_skips().get(status)) is not None:
        return skip.message
    return _REASONS[SkipCode(status)] if status in set(SkipCode) else None


def is_success(code: object) -> bool:
    """Whether ``sys.exit(code)`` ends a process with status 0, as None and integers equal to 0 do, but not 0.0."""
    return code is None or (isinstance(code, int) and int(code) == 0)


def kind_of_exit(status: int) -> SkipKind:
    """The kind of a skip with this exit status, which may also be a code that only the installed torch has.

    Raises:
        ValueError: The status does not mean a skip.
    """
    if status in set(SkipCode):
        return kind(SkipCode(status))
    if status <= 0 or (skip := installed_skips().get(status)) is None:
        msg = f"exit status {status} is not a skip: call reason_of_exit first"
        raise ValueError(msg)
    return SkipKind.HARDWARE if skip.lacks_devices else SkipKind.ENVIRONMENT


def sandcastle_reason(stderr: str) -> str | None:
    """Why a test that passed was actually skipped, from the line that torch's sandcastle decorators print.

    On sandcastle, ``skip_but_pass_in_sandcastle`` and its variants (``torch/testing/_internal/common_utils.py``) let a
    test pass and print the reason on standard error.

    Returns:
        The first such reason; None if no line has this form.
    """
    found = _SANDCASTLE_LINE.search(stderr)
    return None if found is None else found[1].strip() or reason(SkipCode.GENERIC)


def multi_gpu(n: int) -> SkipCode:
    """The code for "at least ``n`` GPUs are needed".

    torch's table ends at 8 GPUs, so larger numbers have the code for 8, and the number must be passed to ``skip``, too.

    Raises:
        ValueError: ``n`` is less than 1.
    """
    if n < 1:
        msg = f"a test cannot need {n} GPUs: give at least 1"
        raise ValueError(msg)
    return _MULTI_GPU[min(n, len(_MULTI_GPU)) - 1]


_DEVICE_NAMES = MappingProxyType({"no_cuda": 1, "no_peer_access": 2, "no_accelerator": 1})
"""torch's keys for missing devices, apart from ``multi-gpu-N``, and the number of devices that the test needs."""


@dataclass(frozen=True)
class TorchSkip:
    """One entry of torch's table."""

    name: str  # torch's key, such as ``multi-gpu-2``
    code: int
    message: str

    @property
    def lacks_devices(self) -> bool:
        """True if GPUs or other accelerators are missing."""
        return self.name in _DEVICE_NAMES or self.name.startswith("multi-")

    @property
    def gpus_needed(self) -> int | None:
        """The number of devices that the test needs; None if this is no hardware skip."""
        if not self.lacks_devices:
            return None
        number = re.search(r"-([1-9][0-9]{0,5})$", self.name)
        return int(number[1]) if number else _DEVICE_NAMES.get(self.name, 1)


@functools.cache
def installed_skips() -> Mapping[int, TorchSkip]:
    """The installed torch's skips by exit code; empty without torch, or if its table has an unknown form."""
    try:
        source = _table_file().read_text(encoding="utf-8")
    except (OSError, ModuleNotFoundError):
        return MappingProxyType({})
    return MappingProxyType({skip.code: skip for skip in parse_skips(source)})


def _table_file() -> Path:
    # Only torch itself is looked up: find_spec("torch.testing") would import torch.
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(name="torch")
    return Path(spec.origin).parent / "testing" / "_internal" / "common_distributed.py"


_STATEMENT: Final = re.compile(r"^TEST_SKIPS\b.*?(?=^[^\s)\]}#]|\Z)", re.DOTALL | re.MULTILINE)
"""A statement at the top level that begins with the table's name, up to the next statement."""


def parse_skips(source: str) -> Iterator[TorchSkip]:
    """The entries of ``TEST_SKIPS`` in the source of torch's module that are plain literals."""
    try:
        statements = ast.parse("".join(_STATEMENT.findall(source))).body  # the whole source would take 30 ms
    except (SyntaxError, ValueError):
        return
    for table in filter(None, map(_table_of, statements)):
        for name, entry in zip(table.keys, table.values, strict=True):
            yield from _read_entry(name, entry)


def _table_of(statement: ast.stmt) -> ast.Dict | None:
    match statement:
        case (
            ast.Assign(targets=[ast.Name(id="TEST_SKIPS")], value=ast.Dict() as table)
            | ast.AnnAssign(target=ast.Name(id="TEST_SKIPS"), value=ast.Dict() as table)
        ):
            return table
    return None


def _read_entry(name: ast.expr | None, entry: ast.expr) -> Iterator[TorchSkip]:
    match name, entry:
        case (
            ast.Constant(value=str(key)),
            ast.Call(args=[ast.Constant(value=int(code)), ast.Constant(value=str(message))]),
        ):
            yield TorchSkip(name=key, code=code, message=message)
