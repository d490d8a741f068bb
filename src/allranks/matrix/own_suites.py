"""The suites that travel with allranks: ``path = "allranks:collectives"`` names one."""

from pathlib import Path
from typing import Final

from allranks.errors import did_you_mean, shown
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


def own_path(table: Table) -> Path | None:
    """The path of the own suite that ``[suites.NAME]`` names, relative to :func:`own_folder`; None for the user's.

    Raises:
        MatrixError: There is no suite of that name, or it is one of several paths.
    """
    given = table.values["path"]
    texts = given if isinstance(given, list) else [given]
    named = [text for text in texts if isinstance(text, str) and text.startswith(PREFIX)]
    if not named:
        return None
    if len(texts) > 1:
        what = f"{shown(named[0])} cannot be one of several paths"
        raise table.error(name="path", what=what, remedy="Give it a suite of its own: its tests lie in another folder.")
    for name in ("exclude", "files"):
        if name in table:
            what = f"a suite of allranks has no {name}"
            raise table.error(
                name=name, what=what, remedy="Remove it; pytest_args can leave tests out: -k, --deselect."
            )
    name, names = named[0].removeprefix(PREFIX), own_names()
    if name not in names:
        what = f"allranks has no suite {shown(name)}"
        raise table.error(name="path", what=what, remedy=did_you_mean(name, names))
    return Path(name)
