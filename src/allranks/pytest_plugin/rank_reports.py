"""``--junit-xml`` on ranks of another launcher: each writes its own report, and rank 0 merges them.

The ranks agree in the store of their world, at the end of their sessions, so that neither a file of an earlier run nor
an absent rank goes unnoticed, and nodes need no file system that they share.
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

_PIECE: Final = 4 << 20
"""Bytes of a value: torch's store takes at most 8 MiB."""

_MERGED: Final = "reports are merged"


class RankReports:
    """The reports of all ranks, if every rank was told to write the same file.

    Where each rank was given a file of its own, all stays as it is. Rank 0 removes the file at once: without it, no
    report of an earlier run is taken for this one's.

    A plugin of pytest's. It does nothing unless a test asks for a fixture that knows the rank.
    """

    def __init__(self, place: RankEnvironment, xml: LogXML) -> None:
        self._place = place
        self._xml = xml
        self._target = Path(xml.logfile)
        self._folder = self._target.with_name(f"{self._target.stem}.ranks")
        self._is_used = False
        self._is_shared = True
        self._report = ""
        self._problem = ""
        self._code = ExitCode.OK  # of the merged report

    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> None:
        """Notice that this is a suite of rank tests."""
        if not self._is_used and fixturedef.argname == "rank_environment":
            self._is_used = True
            if self._place.rank == 0:
                with suppress(OSError):  # then the report cannot be written, either, and its error says why
                    self._target.unlink()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """Give this rank a report of its own before pytest writes it, and have rank 0 merge them afterwards."""
        if not self._is_used:
            return (yield)
        world = session.config.stash.setdefault(WORLD, PlainWorld(self._place))
        self._separate(world)
        result = yield
        self._unite(world)
        terminal: Any = session.config.pluginmanager.get_plugin("terminalreporter")
        for line in filter(None, (self._problem, self._report)):
            if terminal is not None:
                terminal.write_line(line)
        if self._problem and session.exitstatus == pytest.ExitCode.OK:
            has_run = self._code is not ExitCode.NOTHING_RAN
            session.exitstatus = pytest.ExitCode.TESTS_FAILED if has_run else pytest.ExitCode.NO_TESTS_COLLECTED
        return result

    def _separate(self, world: PlainWorld) -> None:
        """Before pytest writes: have it write a file of this rank's own, beside the one that was asked for."""
        with self._explained():
            self._is_shared = self._is_same_elsewhere(world)
        if self._is_shared:
            self._xml.logfile = str(self._file(self._place.rank))
            self._xml.add_global_property("allranks.world_size", str(self._place.world_size))

    def _is_same_elsewhere(self, world: PlainWorld) -> bool:
        """Whether another rank was told to write this rank's file."""
        store, own = world.open(), self._place.rank
        if own == 0:
            for old in self._folder.glob("rank-*.xml"):
                old.unlink()
        store.set(f"report {own}", str(self._target))
        peers = self._others() if own == 0 else [0]
        _wait(store, [f"report {rank}" for rank in peers], world.timeout)
        told = [store.get(f"report {rank}").decode() for rank in peers if store.check([f"report {rank}"])]
        if own != 0 and not told:
            msg = f"rank 0 has not ended its session within {world.timeout:g} s ({TIMEOUT_VARIABLE})"
            raise PeerTimeoutError(msg)
        return not told or str(self._target) in told

    def _unite(self, world: PlainWorld) -> None:
        """After pytest has written: merge the ranks' files on rank 0, for which its peers wait.

        A launcher ends all ranks when the first one ends with an error.
        """
        if not self._is_shared or self._problem:
            return
        with self._explained():
            store = world.open()
            if self._place.rank != 0:
                self._send(store)
                _wait(store, [_MERGED], 2 * world.timeout)
                return
            try:
                self._take(store, world.timeout)
                self._merge()
            finally:
                store.set(_MERGED, "")

    def _send(self, store: "Store") -> None:
        rank, packed = self._place.rank, zlib.compress(self._file(self._place.rank).read_bytes(), 1)
        pieces = range(0, len(packed), _PIECE)
        for number, start in enumerate(pieces):
            store.set(f"piece {number} of report {rank}", packed[start : start + _PIECE])  # type: ignore[arg-type]  # as its C++ takes it
        store.set(f"pieces of report {rank}", str(len(pieces)))

    def _take(self, store: "Store", timeout: float) -> None:
        """Write the files of ranks on other nodes."""
        _wait(store, [f"pieces of report {rank}" for rank in self._others()], timeout)
        for rank in self._others():
            if store.check([f"pieces of report {rank}"]) and not self._file(rank).exists():
                count = int(store.get(f"pieces of report {rank}"))
                packed = b"".join(store.get(f"piece {number} of report {rank}") for number in range(count))
                self._file(rank).write_bytes(zlib.decompress(packed))

    def _merge(self) -> None:
        # Every suite under a launcher loads this module, and rank 0 alone merges.
        from allranks.report.judge.exit_code import exit_code  # noqa: PLC0415
        from allranks.report.merging import merge  # noqa: PLC0415
        from allranks.report.summary import render_problems  # noqa: PLC0415

        recorded = {name for case in self._xml.node_reporters_ordered for name in case.to_xml().attrib}
        merged = merge(self._folder, allowed=recorded)
        self._target.write_bytes(merged.junit.read_bytes())
        self._report = f"report of all {self._place.world_size} ranks: {self._target}"
        self._code = exit_code(merged, nothing_ran_allowed=False)
        if self._code is not ExitCode.OK:
            self._problem = render_problems(merged) or MEANING[self._code]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Keep what goes wrong as the problem: the session of this rank ends as usual."""
        try:
            yield
        except (AllranksError, OSError, RuntimeError) as error:
            remedy = f"Each rank's own is in {self._folder}: `allranks report {self._folder}` makes one of them."
            self._problem = f"there is no report of all ranks in {self._target}: {error}\n{remedy}"

    def _others(self) -> range:
        return range(1, self._place.world_size)

    def _file(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.xml"


def _wait(store: "Store", keys: Sequence[str], seconds: float) -> None:
    """Wait for values of peers; what does not come in time is missed in the report."""
    with suppress(RuntimeError):
        store.wait(list(keys), timedelta(seconds=seconds))
