"""The installed torch's own table of skip exit codes, read from its source.

Codes and words differ between versions of torch, and a newer one has codes that we do not know. Importing the module
that holds the table takes a second and changes global state, so it is parsed instead, and never executed.
"""

import ast
import functools
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

_DEVICE_NAMES = frozenset({"no_cuda", "no_peer_access", "no_accelerator"})


@dataclass(frozen=True)
class TorchSkip:
    """One entry of torch's table.

    Args:
        name: torch's key, such as ``multi-gpu-2``.
        code: The exit code.
        message: torch's words for it.
    """

    name: str
    code: int
    message: str

    @property
    def is_for_want_of_devices(self) -> bool:
        """Whether GPUs, or what takes their place, are lacking."""
        return self.name in _DEVICE_NAMES or self.name.startswith("multi-")


@functools.cache
def installed_skips() -> Mapping[int, TorchSkip]:
    """The installed torch's skips by exit code; empty without torch, or where its table is of no form that we know."""
    try:
        source = _table_file().read_text(encoding="utf-8")
    except (OSError, ModuleNotFoundError):
        return MappingProxyType({})
    return MappingProxyType({skip.code: skip for skip in parse_skips(source)})


def _table_file() -> Path:
    # torch itself must be found without looking into it: find_spec("torch.testing") would import torch.
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(name="torch")
    return Path(spec.origin).parent / "testing" / "_internal" / "common_distributed.py"


def parse_skips(source: str) -> Iterator[TorchSkip]:
    """The entries of ``TEST_SKIPS`` in the source of torch's module; what is no plain literal is left out."""
    try:
        statements = ast.parse(source).body
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
