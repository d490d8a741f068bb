"""``--junit-xml`` on ranks that another launcher has started: each rank writes its report, and rank 0 merges them.

At the end of their sessions, the ranks communicate through the store of their world. Therefore, files of an earlier run
and missing ranks are detected, and nodes need no shared file system.
"""

import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from _pytest.junitxml import LogXML

from allranks.errors import MEANING, AllranksError, ExitCode
from allranks.testing.environment import RankEnvironment
from allranks.testing.fixtures import WORLD
from allranks.testing.plain_world import TIMEOUT_VARIABLE, PlainWorld
from allranks.testing.shared_files import PeerTimeoutError

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # as all of its stores, not exported for mypy

_CHUNK: Final = 4 << 20
"""Bytes of one value in the store; torch's limit is 8 MiB."""

_MERGED: Final = "reports are merged"


class RankReports:
    """A pytest plugin that merges the reports of all ranks if they were configured to write the same file.

    It does nothing if each rank has its own file, or if no test uses a fixture that depends on the rank. Rank 0 removes
    the file before the first such test, so that the report of an earlier run is never mistaken for this one's.
    """

    def __init__(self, environment: RankEnvironment, xml: LogXML) -> None:
        self._environment = environment
        self._xml = xml
        self._target = Path(xml.logfile)
        self._folder = self._target.with_name(f"{self._target.stem}.ranks")
        self._is_used = False
        self._is_shared = True
        self._report = ""
        self._problem = ""
        self._code = ExitCode.OK  # of the merged report

    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> None:
        """Detect that a test uses a fixture that depends on the rank."""
        if not self._is_used and fixturedef.argname == "rank_environment":
            self._is_used = True
            if self._environment.rank == 0:
                with suppress(OSError):  # the report cannot be written either, which is reported later
                    self._target.unlink()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """Write this rank's report to its own file, and merge the reports of all ranks in rank 0."""
        if not self._is_used:
            return (yield)
        world = session.config.stash.setdefault(WORLD, PlainWorld(self._environment))
        self._redirect(world)
        result = yield
        self._combine(world)
        terminal: Any = session.config.pluginmanager.get_plugin("terminalreporter")
        for line in filter(None, (self._problem, self._report)):
            if terminal is not None:
                terminal.write_line(line)
        if self._problem and session.exitstatus == pytest.ExitCode.OK:
            has_run = self._code is not ExitCode.NOTHING_RAN
            session.exitstatus = pytest.ExitCode.TESTS_FAILED if has_run else pytest.ExitCode.NO_TESTS_COLLECTED
        return result

    def _redirect(self, world: PlainWorld) -> None:
        """Before pytest writes the report, change its path to this rank's own file."""
        with self._catching_errors():
            self._is_shared = self._has_same_path(world)
        if self._is_shared:
            self._xml.logfile = str(self._file(self._environment.rank))
            self._xml.add_global_property("allranks.world_size", str(self._environment.world_size))

    def _has_same_path(self, world: PlainWorld) -> bool:
        """Whether another rank was configured to write the same file; rank 0 assumes so if no other rank answers."""
        store, own = world.open(), self._environment.rank
        if own == 0:
            for old in self._folder.glob("rank-*.xml"):
                old.unlink()
        store.set(f"report {own}", str(self._target))
        peers = self._others() if own == 0 else [0]
        _wait(store, [f"report {rank}" for rank in peers], world.timeout)
        paths = [store.get(f"report {rank}").decode() for rank in peers if store.check([f"report {rank}"])]
        if own != 0 and not paths:
            msg = f"rank 0 has not ended its session within {world.timeout:g} s ({TIMEOUT_VARIABLE})"
            raise PeerTimeoutError(msg)
        return not paths or str(self._target) in paths

    def _combine(self, world: PlainWorld) -> None:
        """After pytest has written the report, send it to rank 0, and merge the reports there.

        Other ranks wait until rank 0 has finished, because a launcher ends all ranks when one exits with an error.
        """
        if not self._is_shared or self._problem:
            return
        with self._catching_errors():
            store = world.open()
            if self._environment.rank != 0:
                self._send(store)
                _wait(store, [_MERGED], 2 * world.timeout)
                return
            try:
                self._receive(store, world.timeout)
                self._merge()
            finally:
                store.set(_MERGED, "")

    def _send(self, store: "Store") -> None:
        rank = self._environment.rank
        data = zlib.compress(self._file(rank).read_bytes(), 1)
        chunks = range(0, len(data), _CHUNK)
        for number, start in enumerate(chunks):
            store.set(f"chunk {number} of report {rank}", data[start : start + _CHUNK])  # type: ignore[arg-type]  # torch accepts bytes
        store.set(f"chunks of report {rank}", str(len(chunks)))

    def _receive(self, store: "Store", timeout: float) -> None:
        """Write the files of ranks on other nodes."""
        _wait(store, [f"chunks of report {rank}" for rank in self._others()], timeout)
        for rank in self._others():
            if store.check([f"chunks of report {rank}"]) and not self._file(rank).exists():
                count = int(store.get(f"chunks of report {rank}"))
                data = b"".join(store.get(f"chunk {number} of report {rank}") for number in range(count))
                self._file(rank).write_bytes(zlib.decompress(data))

    def _merge(self) -> None:
        # Imported here because every suite under a launcher loads this module, and only rank 0 merges.
        from allranks.report.judge.exit_code import exit_code  # noqa: PLC0415
        from allranks.report.merging import merge  # noqa: PLC0415
        from allranks.report.summary import render_problems  # noqa: PLC0415

        recorded = {name for case in self._xml.node_reporters_ordered for name in case.to_xml().attrib}
        merged = merge(self._folder, allowed=recorded)
        self._target.write_bytes(merged.junit.read_bytes())
        self._report = f"report of all {self._environment.world_size} ranks: {self._target}"
        self._code = exit_code(merged, nothing_ran_allowed=False)
        if self._code is not ExitCode.OK:
            self._problem = render_problems(merged) or MEANING[self._code]

    @contextmanager
    def _catching_errors(self) -> Iterator[None]:
        """Store errors for the end of the session, which ends as usual."""
        try:
            yield
        except (AllranksError, OSError, RuntimeError) as error:
            remedy = f"The reports of the ranks are in {self._folder}. To merge them: `allranks report {self._folder}`"
            self._problem = f"the report of all ranks, {self._target}, could not be written: {error}\n{remedy}"

    def _others(self) -> range:
        return range(1, self._environment.world_size)

    def _file(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.xml"


def _wait(store: "Store", keys: Sequence[str], seconds: float) -> None:
    """Wait for values of peers. If some are missing when the time is up, the merged report shows it."""
    with suppress(RuntimeError):
        store.wait(list(keys), timedelta(seconds=seconds))
