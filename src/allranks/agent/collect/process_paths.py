"""Paths that pytest clears or writes to: each process of a job gets its own, below or beside the path that was given.

``--basetemp DIR`` becomes ``DIR/CELL/SUITE/gang-1/rank-0``, ``--log-file run.log`` becomes
``run.ranks/CELL/SUITE/gang-1/rank-0.log``, and so does ``--debug``. The process that collects has ``agent`` in place of
the gang and the rank. As pytest clears DIR when it starts, a job clears its own part of it.
"""

import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from allranks.protocol.config import AgentConfig

AGENT: Final = Path("agent")
"""The process that collects."""

_NAMES: Final = ("basetemp", "log_file", "debug")


def process_of_rank(gang: int, rank: int) -> Path:
    """The place of a rank among the processes of its job."""
    return Path(f"gang-{gang}", f"rank-{rank}")


@dataclass
class ProcessPaths:
    """The paths of one job's processes."""

    config: AgentConfig
    _roots: dict[str, Path] = field(default_factory=dict, init=False)  # the job's folder for each option
    _suffixes: dict[str, str] = field(default_factory=dict, init=False)

    def replace(self, config: pytest.Config, process: Path) -> None:
        """Replace what was given by the paths of this process, after the command line is parsed and before it is used.

        Args:
            config: pytest's configuration.
            process: The place of this process; :data:`AGENT` also clears what an earlier job left.
        """
        of_node = [f"node-{self.config.node}"] if self.config.nodes > 1 else []
        job = Path(self.config.cell, self.config.suite, *of_node)
        for name in _NAMES:
            given = _given(config, name)
            if given is None:
                continue
            self._roots[name] = (given if name == "basetemp" else given.with_name(f"{given.stem}.ranks")) / job
            self._suffixes[name] = "" if name == "basetemp" else given.suffix
            if process == AGENT:
                shutil.rmtree(self._roots[name], ignore_errors=True)
            setattr(config.option, name, str(self._path(name, process)))

    def take(self, config: pytest.Config, process: Path) -> None:
        """Take the paths of a rank, in a fork of the process that had collected with its own."""
        paths = {name: self._path(name, process) for name in self._roots}
        for name, path in paths.items():
            setattr(config.option, name, str(path))
        factory: Any = getattr(config, "_tmp_path_factory", None)  # not public; None with -p no:tmpdir
        if "basetemp" in paths and factory is not None:
            factory._given_basetemp, factory._basetemp = paths["basetemp"], None  # noqa: SLF001 - not public
        self.make(config)
        logging = config.pluginmanager.get_plugin("logging-plugin")
        if "log_file" in paths and logging is not None:
            logging.set_log_path(str(paths["log_file"]))
        if "debug" in paths:
            config.trace.root.setwriter(paths["debug"].open("w", buffering=1, encoding="utf-8").write)

    def make(self, config: pytest.Config) -> None:
        """Make this process's folder of temporary files: each process that a test forks would clear it otherwise."""
        factory: Any = getattr(config, "_tmp_path_factory", None)
        if "basetemp" in self._roots and factory is not None:
            with suppress(OSError):  # a test that asks for the folder gets the error
                factory.getbasetemp()

    def _path(self, name: str, process: Path) -> Path:
        """The path of a process; its folder is made, because pytest does not make that of each option."""
        path = self._roots[name] / process
        with suppress(OSError):  # pytest explains it
            path.parent.mkdir(parents=True, exist_ok=True)
        return path.with_name(f"{path.name}{self._suffixes[name]}")


def _given(config: pytest.Config, name: str) -> Path | None:
    """The path that the user has given; None for none, and for a device such as ``/dev/null``."""
    given = getattr(config.option, name, None)
    if not given and name == "log_file":
        with suppress(ValueError, KeyError):  # there is no such key with -p no:logging
            given = config.getini(name)
    if not given:
        return None
    path = Path(given).absolute()
    return path if path.is_file() or path.is_dir() or not path.exists() else None
