"""The tables of the matrix file: those of the core and of plug-ins, each declared by a dataclass of keys.

Of a plug-in of allranks, only ``plugins/NAME/keys.py`` is imported, whose ``TABLES`` has its tables by name. Other
packages register each table with the entry point ``allranks.tables``.
"""

import importlib
from collections.abc import Collection
from dataclasses import is_dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from allranks.errors import PluginError
from allranks.matrix.keys import keys_of, read_table, table_schema
from allranks.matrix.model import Matrix
from allranks.matrix.toml_file import Table

GROUP: Final = "allranks.tables"
"""The group of the entry points: the name is that of a table, and the object is its dataclass."""

CORE: Final = frozenset(key.name for key in keys_of(Matrix).values())


def own_tables() -> dict[str, type]:
    """The tables of allranks' own plug-ins, by name."""
    folders = sorted(path.parent.name for path in (Path(__file__).parents[1] / "plugins").glob("*/keys.py"))
    modules = (importlib.import_module(f"allranks.plugins.{name}.keys") for name in folders)
    return {name: table for module in modules for name, table in module.TABLES.items()}


def plugin_tables(names: Collection[str] | None = None) -> dict[str, type]:
    """The tables of plug-ins, by name.

    Args:
        names: The tables of a file: if all are known, other packages are not searched, which would take milliseconds.
            None for all tables.
    """
    found = own_tables()
    if names is not None and {*CORE, *found} >= set(names):
        return found
    for point in entry_points(group=GROUP):
        if point.name in CORE or point.name in found:
            msg = f"The table [{point.name}] of the matrix file is declared twice ({point.value})."
            raise PluginError(msg, remedy="Remove one of the packages that declare it.")
        try:
            found[point.name] = point.load()
        except (Exception, SystemExit) as error:
            msg = f"The declaration of the table [{point.name}] cannot be loaded ({point.value})."
            why = f"{type(error).__name__}: {error}"
            raise PluginError(msg, why=why, remedy="Repair or remove the package that adds it.") from error
        if not (isinstance(found[point.name], type) and is_dataclass(found[point.name])):
            msg = f"The declaration of the table [{point.name}] is not a dataclass ({point.value})."
            raise PluginError(
                msg, remedy="Make it a dataclass of allranks.matrix.keys.key fields: see docs/extending.md."
            )
    return found


def read_tables(file: Table, declared: dict[str, type]) -> dict[str, Any]:
    """Read the tables of plug-ins in a matrix file."""
    return {name: read_table(file.below(name), table) for name, table in declared.items() if name in file.values}


def json_schema() -> dict[str, Any]:
    """The JSON schema (draft 7) of the matrix file, with the tables of all plug-ins."""
    schema = table_schema(Matrix)
    for name, table in plugin_tables().items():
        schema["properties"][name] = {"description": table.__doc__ or "", **table_schema(table)}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "The matrix file of allranks",
        "description": "matrix.toml, or the table [tool.allranks] of pyproject.toml.",
        **schema,
    }
