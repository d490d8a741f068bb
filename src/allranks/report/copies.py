"""Results that are there twice: a file beside its copy, two files that claim one rank, a job beside its copy."""

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Final, TypeVar

from allranks.report.columns import RankFile
from allranks.report.folder import Attempt

T = TypeVar("T")

TELLING: Final = 3
"""Different durations that a job needs to be known again by them: no two runs take the same milliseconds twice."""


def told_apart(items: Sequence[T], is_copy: Callable[[T, T], bool]) -> tuple[list[T], list[tuple[T, T]]]:
    """The items without copies of those before them, and each copy with what it is one of."""
    kept: list[T] = []
    copies: list[tuple[T, T]] = []
    for item in items:
        same = next((other for other in kept if is_copy(item, other)), None)
        if same is None:
            kept.append(item)
        else:
            copies.append((item, same))
    return kept, copies


def without_copies(files: Sequence[RankFile]) -> tuple[list[RankFile], tuple[str, ...]]:
    """The files without those that say exactly what another of them says, and a note on each that was left out."""
    kept, copies = told_apart(files, _is_copy)
    notes = (f"{file.path.name} says the same as {same.path.name}, and counts once" for file, same in copies)
    return kept, tuple(notes)


def _is_copy(one: RankFile, other: RankFile) -> bool:
    same_rank = one.rank == other.rank and one.rank is not None
    return (
        same_rank
        and one.seconds == other.seconds
        and one.keys == other.keys
        and (one.details, one.problem) == (other.details, other.problem)
    )


def contradictions(files: Sequence[RankFile]) -> Iterator[tuple[int, str]]:
    """For each rank that several files claim to be, and say different things of, what is to be said."""
    by_rank: dict[int, list[str]] = {}
    for file in files:
        if file.rank is not None:
            by_rank.setdefault(file.rank, []).append(file.path.name)
    for rank, names in by_rank.items():
        if len(names) > 1:
            text = f"{' and '.join(names)} are both of rank {rank}, and differ: the worse outcome of each test counts."
            yield rank, f"{text}\nLeave one of them in the folder."


class CopyWatch:
    """Knows jobs again whose results were there before, under another name."""

    def __init__(self) -> None:
        self._seen: dict[bytes, str] = {}

    def notes_on(self, attempt: Attempt, files: Sequence[RankFile]) -> tuple[str, ...]:
        """What is to be said of a job: nothing, unless it is a copy."""
        place = f"{attempt.cell} / {attempt.suite}"
        first = self._seen.setdefault(_digest(files), place) if _is_telling(files) else place
        return () if first == place else (f"has the same results as {first}, as if these had been gathered twice",)


def _is_telling(files: Sequence[RankFile]) -> bool:
    return len({seconds for file in files[:1] for seconds in file.seconds}) >= TELLING


def _digest(files: Sequence[RankFile]) -> bytes:
    digest = blake2b(digest_size=16)
    for file in sorted(files, key=lambda file: file.rank or 0):
        digest.update(file.seconds.tobytes())
    return digest.digest()
