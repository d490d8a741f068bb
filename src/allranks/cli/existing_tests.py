"""Finds the distributed tests of a repository, and the suite keys that they need to run unchanged.

The source of a test shows what starts its ranks and what creates its process group. No test is imported.
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

from allranks.matrix.jobs import suites_with_tests
from allranks.matrix.model import Matrix
from allranks.protocol.outcomes import named

_MOST_FILES: Final = 2000
_OUTSIDE: Final = re.compile(r"\..*|__pycache__|build|dist|node_modules|results|venv")
_TEST_FILE: Final = re.compile(r"test_.*\.py|.*_test\.py")

_MENTIONED: Final = re.compile(
    rb"torch\.(distributed|multiprocessing|testing)|from torch import|torchrun|process_group|rank|world_size|shared_"
    rb"|DistributedTest|_launcher|ddp_"
)
"""Matches the source of every distributed test file; other files are not parsed."""

_ABOUT_RANKS: Final = re.compile(
    rb"\b(world_size|WORLD_SIZE|local_rank|LOCAL_RANK|init_process_group|nproc_per_node|num_processes|(ddp|fsdp)(_\w+)?"
    rb"|torch\.distributed|DistributedDataParallel|FullyShardedDataParallel|RunIf\([^)]*(standalone|min_\w*gpus))\b"
)
"""Matches test files in no suite that may be distributed nevertheless."""

_STARTS_PROCESSES: Final = re.compile(
    r"(\w+\.)*multiprocessing(\.\w+)*\.(spawn|start_processes|\w*Process|Pool|get_context)"
    r"|concurrent\.futures\.ProcessPoolExecutor|torch\.distributed\.(launcher|run)\..*"
)
_STARTS_RANKS: Final = re.compile(r"accelerate(\.\w+)*\.(debug|notebook)_launcher")
_LIGHTNINGS_STRATEGY: Final = re.compile(r"(ddp|fsdp)_(spawn|fork|notebook)\w*")
"""A string that makes Lightning start processes."""

_DEEPSPEEDS_CLASS: Final = re.compile(r"(\w*\.)*Distributed(Test|Fixture)")
"""The base class of DeepSpeed's tests, or a copy of it: each test starts a pool of ranks."""

_WORLD_SIZE_MARKER: Final = re.compile(r"(\w+\.)*(\w+_)?world_size")
_LAUNCHER: Final = re.compile(r"(\S*/)?torchrun(\s+-.*)?|torch\.distributed\.(run|launch)", re.DOTALL)
"""Matches a string that is a torchrun command, but not a sentence that mentions torchrun."""

_TORCHS_CLASS: Final = re.compile(r"torch\.testing\._internal\.(common_distributed|common_fsdp|distributed\..*)\.\w+")
_TORCHS_TESTING: Final = "torch.testing._internal"
_DISTRIBUTED: Final = ("torch.distributed", "torch.multiprocessing", "allranks.testing")
_FIXTURES: Final = frozenset(
    {"process_group", "subgroup", "rank", "world_size", "local_rank", "shared_dir", "shared_tmp_path", "file_barrier"}
)


@dataclass(frozen=True, kw_only=True)
class Style:
    """A style of distributed tests."""

    meaning: str
    keys: Mapping[str, object] = field(default_factory=dict)  # keys of the suite
    starts_ranks: bool = False  # whether the tests choose the number of ranks, regardless of the cell


STYLES: Final[Mapping[str, Style]] = {
    "distributed": Style(meaning="every rank runs these tests, in the process group of its cell"),
    "torchrun": Style(
        meaning="every rank runs these tests, which create the process group", keys={"process_group": False}
    ),
    "torch-classes": Style(meaning="torch's test classes start the ranks of these tests", starts_ranks=True),
    "spawn": Style(meaning="these tests start processes", keys={"launches_ranks": True}, starts_ranks=True),
}
"""The styles of tests, by the names of their suites."""


@dataclass(frozen=True, kw_only=True)
class ExistingTests:
    """The distributed tests of a repository."""

    suites: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # files and folders by style
    counts: Mapping[str, int] = field(default_factory=dict)  # number of test files by style; "" for those in no suite
    unrecognized: tuple[str, ...] = ()  # files in no suite that mention ranks
    has_more: bool = False  # whether there are too many test files to read all of them
    need_expecttest: bool = False  # whether the tests import torch's test classes, which import expecttest


def find_tests(root: Path) -> ExistingTests:
    """Find the distributed tests in a repository by the source of its test files."""
    found = find_files(root)
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
        need_expecttest=any(_with_imports(path, root).uses(_TORCHS_TESTING) for path in distributed),
    )


def find_files(root: Path, below: Path = Path()) -> Iterator[str]:
    """The test files below a folder of the repository, as paths relative to `root`."""
    for folder, folders, files in os.walk(root / below):
        folders[:] = sorted(
            name for name in folders if not _OUTSIDE.fullmatch(name) and not Path(folder, name, "pyvenv.cfg").exists()
        )
        for name in sorted(files):
            if _TEST_FILE.fullmatch(name):
                yield os.path.relpath(os.path.join(folder, name), root)  # noqa: PTH118


def is_distributed(path: Path, root: Path) -> bool:
    """Whether a test file is recognized as distributed, by its source."""
    return bool(_style(path, root))


def _is_about_ranks(path: Path) -> bool:
    with suppress(OSError):
        return _ABOUT_RANKS.search(path.read_bytes()) is not None
    return True


def _style(path: Path, root: Path) -> str:
    """The style of a test file, by its own source, or else with its conftests and imported modules."""
    own = _source(root / path)
    if own.is_distributed:
        return own.style or _with_imports(path, root).style or ("spawn" if own.has_deepspeeds_class else "distributed")
    if own.fixtures & _FIXTURES and own.fixtures & _FIXTURES - (combined := _with_imports(path, root)).functions:
        return combined.style or "distributed"
    return ""


@dataclass(frozen=True, kw_only=True)
class _Source:
    """The names in the source of one or several modules."""

    names: frozenset[str] = frozenset()  # with their modules: torch.distributed.init_process_group
    bases: frozenset[str] = frozenset()  # base classes
    modules: frozenset[str] = frozenset()  # imported modules; relative ones begin with dots
    functions: frozenset[str] = frozenset()
    fixtures: frozenset[str] = frozenset()  # parameters of tests
    decorators: frozenset[str] = frozenset()  # decorators with arguments
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


def _with_imports(path: Path, root: Path) -> _Source:
    """The combined source of a test file, its conftests, and the modules of the repository that it imports."""
    found = _source(root / path)
    conftests = [root / folder / "conftest.py" for folder in path.parents]
    for other in (*conftests, *_imported(found.modules, root / path, root)):
        found |= _source(other)
    return found


def _imported(modules: Iterable[str], path: Path, root: Path) -> Iterator[Path]:
    for module in modules:
        name = module.lstrip(".")
        dots = len(module) - len(name)
        above = [folder for folder in path.parents if folder.is_relative_to(root)]  # any of them may be in sys.path
        folders = [path.parents[dots - 1]] if 0 < dots <= len(path.parents) else [*above, root / "src"]
        for folder in folders:
            yield from (folder / f"{name.replace('.', '/')}{end}" for end in (".py", "/__init__.py"))


@cache
def _source(path: Path) -> _Source:
    """The source of a module; empty if it does not exist or is not valid Python."""
    try:
        with warnings.catch_warnings(action="ignore"):  # invalid escapes such as '\d'
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
        functions=frozenset(function.name for function in functions),
        fixtures=frozenset(name for test in functions if test.name.startswith("test") for name in _fixtures(test)),
        decorators=frozenset(
            _name(decorator.func, imported)
            for node in nodes
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            for decorator in node.decorator_list
            if isinstance(decorator, ast.Call)
        ),
        starts_torchrun=any(map(_LAUNCHER.fullmatch, texts)),
        has_lightnings_strategy=any(map(_LIGHTNINGS_STRATEGY.fullmatch, texts)),
    )


def _imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that an import binds, with their full names."""
    match node:
        case ast.Import(names=names):
            for name in names:
                yield (name.asname, name.name) if name.asname else (name.name.partition(".")[0],) * 2
        case ast.ImportFrom(names=names, module=module):
            for name in names:
                yield name.asname or name.name, f"{module or ''}.{name.name}"


def _name(node: ast.AST, imported: Mapping[str, str]) -> str:
    """The full name of ``name.attribute.attribute``; empty for any other node."""
    match node:
        case ast.Name(id=name):
            return imported.get(name, name)
        case ast.Attribute(value=value, attr=attribute):
            return f"{inner}.{attribute}" if (inner := _name(value, imported)) else ""
    return ""


def _fixtures(test: ast.FunctionDef) -> Iterator[str]:
    """The parameters of a test, without those of its ``parametrize`` marks."""
    texts = [
        node.value
        for decorator in test.decorator_list
        for node in ast.walk(decorator)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    parametrized = {word for text in texts for word in re.findall(r"\w+", text)}
    yield from (parameter.arg for parameter in test.args.args if parameter.arg not in parametrized)


def files_in_no_suite(matrix: Matrix) -> Iterator[str]:
    """A note on distributed tests that never run: in folders of suites, but neither in a suite nor excluded."""
    suites = [suite for suite in matrix.suites.values() if suite.home is None]
    folders = {path if (matrix.root / path).is_dir() else path.parent for suite in suites for path in suite.paths}
    excluded = [path for suite in suites for path in suite.ignored]
    files = [
        file
        for file in sorted({file for folder in folders for file in find_files(matrix.root, folder)})
        if not any(map(Path(file).is_relative_to, excluded))
        and not suites_with_tests(matrix, [file])
        and is_distributed(Path(file), matrix.root)
    ]
    if files:
        yield f"These distributed tests are in no suite, and never run: {named(files)}."
        yield f"Add them to `path` of a suite in {matrix.path.name}."
