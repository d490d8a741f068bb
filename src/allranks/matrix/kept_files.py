"""Files that runs keep beside the matrix file: durations of tests, and the history of their outcomes."""

from pathlib import Path
from typing import Final

from allranks.errors import shown
from allranks.matrix.toml_file import Table, exists

HISTORY_FILE: Final = ".allranks-history.sqlite"


def kept_file(table: Table, default: str) -> Path:
    """The file that a table names, which the first run creates; its folder must exist.

    Raises:
        MatrixError: It cannot be a file.
    """
    table.only("file")
    text = table.text("file", default, default)
    path = table.relative_path("file", text)
    place = table.path.parent / path
    if exists(place) and place.is_dir():
        remedy = f'Write file = "{default}", or leave it out.'
        raise table.error(name="file", what=f"{shown(text)} is a folder", remedy=remedy)
    if not exists(place.parent):
        what = f"there is no folder for {shown(text)}"
        raise table.error(name="file", what=what, remedy="Create it, or name another file.")
    return path
