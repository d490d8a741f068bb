"""The suites that travel with allranks: ``path = "allranks:collectives"`` names one."""

from pathlib import Path
from typing import Final

from allranks.errors import did_you_mean, shown
from allranks.matrix.model import Suite
from allranks.matrix.toml_file import Table

PREFIX: Final = "allranks:"


def own_folder() -> Path:
    """The folder of these suites.

    A wheel carries it inside the package; a checkout (and so an editable install) has it beside ``src``.
    """
    package = Path(__file__).resolve().parents[1]
    installed = package / "suites"
    return installed if installed.is_dir() else package.parents[1] / "suites"


def own_names() -> tuple[str, ...]:
    """The suites that a matrix file can name: the folders that hold tests themselves."""
    return tuple(sorted({path.parent.name for path in own_folder().glob("*/test_*.py")}))


def own_path(table: Table, suite: Suite) -> Path | None:
    """The path of the own suite that ``[suites.NAME]`` names, relative to :func:`own_folder`; None for the user's."""
    named = [text for text in map(str, suite.paths) if text.startswith(PREFIX)]
    if not named:
        return None
    if len(suite.paths) > 1:
        what = f"{shown(named[0])} cannot be one of several paths"
        table.refuse("path", what, "Give it a suite of its own: its tests lie in another folder.")
    for name in {"exclude", "files"} & table.values.keys():
        remedy = "Remove it; pytest_args can leave tests out: -k, --deselect."
        table.refuse(name, f"a suite of allranks has no {name}", remedy)
    name, names = named[0].removeprefix(PREFIX), own_names()
    if name not in names:
        table.refuse("path", f"allranks has no suite {shown(name)}", did_you_mean(name, names))
    return Path(name)
