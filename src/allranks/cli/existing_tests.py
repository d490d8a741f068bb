"""The distributed tests that a repository has, and the keys of a suite under which they run as they are.

A test's source says who starts its ranks and who makes its process group. Nothing of it is imported.
"""

import ast
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Final

_MOST_FILES: Final = 2000
_OUTSIDE: Final = re.compile(r"\..*|__pycache__|build|dist|node_modules|results|venv")
_TEST_FILE: Final = re.compile(r"test_.*\.py|.*_test\.py")

_MENTIONED: Final = re.compile(
    rb"torch\.(distributed|multiprocessing|testing)|from torch import|torchrun|process_group|rank|world_size|shared_"
    rb"|DistributedTest|_launcher|ddp_"
)
"""What the source of every distributed test file has; no other one is parsed."""

_ABOUT_RANKS: Final = re.compile(
    rb"\b(world_size|WORLD_SIZE|local_rank|LOCAL_RANK|init_process_group|nproc_per_node|num_processes|(ddp|fsdp)(_\w+)?"
    rb"|torch\.distributed|DistributedDataParallel|FullyShardedDataParallel|RunIf\([^)]*(standalone|min_\w*gpus))\b"
)
"""What a test file that is in no suite may have although it is distributed."""

_STARTS_PROCESSES: Final = re.compile(
    r"(\w+\.)*multiprocessing(\.\w+)*\.(spawn|start_processes|\w*Process|Pool|get_context)"
    r"|concurrent\.futures\.ProcessPoolExecutor|torch\.distributed\.(launcher|run)\..*"
)
_STARTS_RANKS: Final = re.compile(r"accelerate(\.\w+)*\.(debug|notebook)_launcher")
_LIGHTNINGS_STRATEGY: Final = re.compile(r"(ddp|fsdp)_(spawn|fork|notebook)\w*")
"""A string by which Lightning starts processes."""

_DEEPSPEEDS_CLASS: Final = re.compile(r"(\w*\.)*Distributed(Test|Fixture)")
"""The base of test classes that start a pool of ranks for each test: DeepSpeed's own, and copies of it."""

_WORLD_SIZE_MARKER: Final = re.compile(r"(\w+\.)*(\w+_)?world_size")
_LAUNCHER: Final = re.compile(r"(\S*/)?torchrun(\s+-.*)?|torch\.distributed\.(run|launch)", re.DOTALL)
"""A string that starts torchrun: a word of a command, and not one of a sentence."""

_TORCHS_CLASS: Final = re.compile(r"torch\.testing\._internal\.(common_distributed|common_fsdp|distributed\..*)\.\w+")
_TORCHS_TESTING: Final = "torch.testing._internal"
_DISTRIBUTED: Final = ("torch.distributed", "torch.multiprocessing", "allranks.testing")
_FIXTURES: Final = frozenset(
    {"process_group", "subgroup", "rank", "world_size", "local_rank", "shared_dir", "shared_tmp_path", "file_barrier"}
)


@dataclass(frozen=True, kw_only=True)
class Style:
    """What tests of one kind need."""

    meaning: str
    keys: Mapping[str, object] = field(default_factory=dict)  # of their suite
    starts_ranks: bool = False  # as many as they like, whatever the cell has


STYLES: Final[Mapping[str, Style]] = {
    "distributed": Style(meaning="every rank runs these, in the process group of its cell"),
    "torchrun": Style(meaning="every rank runs these, and they make the process group", keys={"process_group": False}),
    "torch-classes": Style(meaning="torch's classes start the ranks of these", starts_ranks=True),
    "spawn": Style(meaning="these start processes", keys={"launches_ranks": True}, starts_ranks=True),
}
"""The styles of tests, by the names of their suites."""


@dataclass(frozen=True, kw_only=True)
class ExistingTests:
    """The distributed tests of a repository."""

    # By style: files, and folders with nothing else.
    suites: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)  # test files by style, with "" for those in no suite
    unrecognized: tuple[str, ...] = ()  # those in no suite that have to do with ranks
    has_more: bool = False  # whether there are so many test files that not all were read
    need_expecttest: bool = False  # True if they import torch's own test classes, which import that package


def find_tests(root: Path) -> ExistingTests:
    """The distributed tests in a repository, by the source of its test files."""
    found = _test_files(root)
    files = [Path(path) for path in islice(found, _MOST_FILES)]
    styles = {path: _style(path, root) for path in files}
    below: dict[Path, set[str]] = {}
    for path, style in styles.items():
        for folder in path.parents:
            below.setdefault(folder, set()).add(style)
    suites: dict[str, dict[str, None]] = {}
    for path, style in styles.items():
        folders = [folder for folder in path.parents[:-1] if below[folder] == {style}]
        if style:
            suites.setdefault(style, {})[(folders[-1] if folders else path).as_posix()] = None
    distributed = [path for path, style in styles.items() if style]
    return ExistingTests(
        suites={style: tuple(suites[style]) for style in STYLES if style in suites},
        counts=Counter(styles.values()),
        unrecognized=tuple(path.as_posix() for path in files if not styles[path] and _is_about_ranks(root / path)),
        has_more=next(found, None) is not None,
        need_expecttest=any(_around(path, root).uses(_TORCHS_TESTING) for path in distributed),
    )


def _test_files(root: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(
            name for name in folders if not _OUTSIDE.fullmatch(name) and not Path(folder, name, "pyvenv.cfg").exists()
        )
        for name in sorted(files):
            if _TEST_FILE.fullmatch(name):
                yield os.path.relpath(os.path.join(folder, name), root)  # noqa: PTH118


def _is_about_ranks(path: Path) -> bool:
    with suppress(OSError):
        return _ABOUT_RANKS.search(path.read_bytes()) is not None
    return True


def _style(path: Path, root: Path) -> str:
    """The style of a test file; what it does not say itself, its conftests and the modules that it imports say."""
    own = _source(root / path)
    if own.is_distributed:
        return own.style or _around(path, root).style or ("spawn" if own.has_deepspeeds_class else "distributed")
    if own.fixtures & _FIXTURES and own.fixtures & _FIXTURES - (around := _around(path, root)).functions:
        return around.style or "distributed"
    return ""


@dataclass(frozen=True, kw_only=True)
class _Source:
    """What the source of some modules has."""

    names: frozenset[str] = frozenset()  # with their modules: torch.distributed.init_process_group
    bases: frozenset[str] = frozenset()  # the names of them that are bases of classes
    modules: frozenset[str] = frozenset()  # those imported; a relative one begins with a dot for each folder
    functions: frozenset[str] = frozenset()
    fixtures: frozenset[str] = frozenset()  # the parameters of tests
    decorators: frozenset[str] = frozenset()  # those with arguments
    starts_torchrun: bool = False
    has_lightnings_strategy: bool = False

    def uses(self, *packages: str) -> bool:
        return any(name.startswith(packages) for name in self.names)

    @property
    def starts_ranks(self) -> bool:
        return self.starts_torchrun or self.has_lightnings_strategy or any(map(_STARTS_RANKS.fullmatch, self.names))

    @property
    def has_deepspeeds_class(self) -> bool:
        return any(map(_DEEPSPEEDS_CLASS.fullmatch, self.bases))

    @property
    def is_distributed(self) -> bool:
        return (
            self.starts_ranks
            or self.has_deepspeeds_class
            or self.uses(*_DISTRIBUTED)
            or any(map(_TORCHS_CLASS.fullmatch, self.names))
            or any(map(_WORLD_SIZE_MARKER.fullmatch, self.decorators))
        )

    @property
    def style(self) -> str:
        if self.starts_ranks or any(map(_STARTS_PROCESSES.fullmatch, self.names)):
            return "spawn"
        if any(map(_TORCHS_CLASS.fullmatch, self.bases)):
            return "torch-classes"
        if "process_group" in self.fixtures - self.functions or self.uses("allranks.testing"):
            return "distributed"
        return "torchrun" if any(name.endswith(".init_process_group") for name in self.names) else ""

    def __or__(self, other: "_Source") -> "_Source":
        return _Source(
            names=self.names | other.names,
            bases=self.bases | other.bases,
            functions=self.functions | other.functions,
            fixtures=self.fixtures,
            starts_torchrun=self.starts_torchrun or other.starts_torchrun,
            has_lightnings_strategy=self.has_lightnings_strategy or other.has_lightnings_strategy,
        )


def _around(path: Path, root: Path) -> _Source:
    """The source of a test file, of its conftests, and of the modules of the repository that it imports."""
    found = _source(root / path)
    conftests = [root / folder / "conftest.py" for folder in path.parents]
    for other in (*conftests, *_imported(found.modules, root / path, root)):
        found |= _source(other)
    return found


def _imported(modules: Iterable[str], path: Path, root: Path) -> Iterator[Path]:
    for module in modules:
        name = module.lstrip(".")
        dots = len(module) - len(name)
        above = [folder for folder in path.parents if folder.is_relative_to(root)]  # pytest may add any of them
        folders = [path.parents[dots - 1]] if 0 < dots <= len(path.parents) else [*above, root / "src"]
        for folder in folders:
            yield from (folder / f"{name.replace('.', '/')}{end}" for end in (".py", "/__init__.py"))


@cache
def _source(path: Path) -> _Source:
    """The source of a module; nothing of one that is absent or is no Python."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes like '\d'
            tree = ast.parse(text if _MENTIONED.search(text := path.read_bytes()) else "")
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return _Source()
    nodes = list(ast.walk(tree))
    imported = dict(name for node in nodes for name in _imports(node))
    relative = {f"{'.' * node.level}{node.module or ''}" for node in nodes if isinstance(node, ast.ImportFrom)}
    modules = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names} | relative
    sentences = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    values = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in sentences]
    texts = [text for text in values if isinstance(text, str)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    return _Source(
        names=frozenset({*modules, *imported.values(), *(_name(node, imported) for node in nodes)}),
        bases=frozenset(
            _name(base, imported) for node in nodes if isinstance(node, ast.ClassDef) for base in node.bases
        ),
        modules=frozenset(modules),
        functions=frozenset(each.name for each in functions),
        fixtures=frozenset(name for each in functions if each.name.startswith("test") for name in _fixtures(each)),
        decorators=frozenset(
            _name(mark.func, imported)
            for each in nodes
            if isinstance(each, ast.FunctionDef | ast.ClassDef)
            for mark in each.decorator_list
            if isinstance(mark, ast.Call)
        ),
        starts_torchrun=any(map(_LAUNCHER.fullmatch, texts)),
        has_lightnings_strategy=any(map(_LIGHTNINGS_STRATEGY.fullmatch, texts)),
    )


def _imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Each name that an import makes, with what it stands for."""
    match node:
        case ast.Import(names=names):
            for each in names:
                yield (each.asname, each.name) if each.asname else (each.name.partition(".")[0],) * 2
        case ast.ImportFrom(names=names, module=module):
            for each in names:
                yield each.asname or each.name, f"{module or ''}.{each.name}"


def _name(node: ast.AST, imported: Mapping[str, str]) -> str:
    """What ``name.attribute.attribute`` stands for; empty for anything else."""
    match node:
        case ast.Name(id=name):
            return imported.get(name, name)
        case ast.Attribute(value=value, attr=attribute):
            return f"{inner}.{attribute}" if (inner := _name(value, imported)) else ""
    return ""


def _fixtures(test: ast.FunctionDef) -> Iterator[str]:
    """The parameters of a test, without those that a mark of it gives."""
    texts = [
        node.value
        for mark in test.decorator_list
        for node in ast.walk(mark)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    given = {word for text in texts for word in re.findall(r"\w+", text)}
    yield from (each.arg for each in test.args.args if each.arg not in given)
