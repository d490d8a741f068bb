"""Tables of the matrix file that belong to plug-ins.

A plug-in declares its tables as data, in the words of JSON Schema; the parser and the schema for editors use the same
data. Reading a matrix imports no plug-in of allranks: their tables are in files, ``plugins/NAME/tables.json``. Another
package registers each table by the entry point ``allranks.tables``.
"""

import json
import re
from collections.abc import Collection, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from allranks.errors import PluginError, shown
from allranks.matrix.toml_file import LARGEST_NUMBER, Table

GROUP: Final = "allranks.tables"
"""The group of the entry points; each has the name of a table, and names its declaration."""

Declaration = Mapping[str, Any]
"""A table: ``description``, ``properties`` (its keys), and in ``examples`` one that has all keys.

A key has a ``description``, and a ``default`` unless that is None. It is one of these:

- a text: ``type`` *string*, with ``pattern`` or ``enum``. ``x-error`` ends the message for a text without the pattern
  (*"podman:x" names no known image*), and ``x-remedy`` says what to write.
- a file that a run makes: the same with ``format`` *new-file* and a default. It is relative to the matrix file, and
  read as a path.
- a whole number: ``type`` *integer*, with ``minimum``, and ``maximum`` if there is one.
- *true* or *false*: ``type`` *boolean*.
- a list of texts: ``type`` *array*; read as a tuple.
"""


def declared_tables() -> dict[str, Declaration]:
    """The tables of allranks' own plug-ins, by name; none of a plug-in that is not there."""
    paths = sorted((Path(__file__).parents[1] / "plugins").glob("*/tables.json"))
    return {name: table for path in paths for name, table in json.loads(path.read_text(encoding="utf-8")).items()}


def _tables_of_packages(taken: Collection[str]) -> dict[str, Declaration]:
    """The tables that other packages declare, by name.

    Raises:
        PluginError: One cannot be loaded, or has the name of another table.
    """
    found: dict[str, Declaration] = {}
    for point in entry_points(group=GROUP):
        if point.name in taken or point.name in found:
            msg = f"The table [{point.name}] of the matrix file is declared twice ({point.value})."
            raise PluginError(msg, remedy="Remove one of the packages that declare it.")
        try:
            found[point.name] = point.load()
        except (Exception, SystemExit) as error:
            msg = f"The declaration of the table [{point.name}] cannot be loaded ({point.value})."
            why = f"{type(error).__name__}: {error}"
            raise PluginError(msg, why=why, remedy="Repair or remove the package that adds it.") from error
        if not _is_declaration(found[point.name]):
            msg = f"The declaration of the table [{point.name}] is none ({point.value})."
            why = "It is a mapping that has the table's keys in properties, each as a mapping."
            raise PluginError(msg, why=why, remedy="Repair or remove the package that adds it.")
    return found


def _is_declaration(found: object) -> bool:
    keys = found.get("properties") if isinstance(found, Mapping) else None
    return isinstance(keys, Mapping) and all(isinstance(key, Mapping) for key in keys.values())


def read_tables(file: Table, own: Collection[str]) -> dict[str, dict[str, Any]]:
    """The tables of plug-ins that a matrix file has, with all keys.

    Args:
        file: The matrix file.
        own: The names of the core's tables.

    Raises:
        MatrixError: A table is not known, or wrong.
        PluginError: The declaration of a table cannot be used.
    """
    known = declared_tables()
    if not {*own, *known} >= set(file.values):  # to search the installed packages takes some milliseconds
        known |= _tables_of_packages({*own, *known})
    file.only(*own, *known)
    return {name: read_table(file.table(name), declaration) for name, declaration in known.items() if name in file}


def read_table(table: Table, declaration: Declaration) -> dict[str, Any]:
    """The values of a table, by key.

    Raises:
        MatrixError: A key is not known, or its value is wrong.
        PluginError: The declaration has an unknown type.
    """
    keys: Mapping[str, Any] = declaration["properties"]
    table.only(*keys)
    return {name: _value(table, name, key) for name, key in keys.items()}


def _value(table: Table, name: str, key: Declaration) -> object:
    default = key.get("default")
    match key:
        case {"enum": allowed}:
            return table.choice(name, tuple(allowed), default)
        case {"type": "string", "format": "new-file"}:
            return table.new_file(name, str(default))
        case {"type": "string"}:
            return _text(table, name, key)
        case {"type": "integer"}:
            bounds = key.get("minimum", 0), key.get("maximum", LARGEST_NUMBER)
            return table.checked_whole(name, table.values[name], *bounds) if name in table else default
        case {"type": "boolean"}:
            return table.flag(name, default=bool(default))
        case {"type": "array"}:
            return table.texts(name) if name in table else tuple(default or ())
        case _:
            msg = f"The key {name} of the table [{table.key[-1]}] is declared without a type that allranks knows."
            raise PluginError(msg, remedy="See docs/extending.md for the types of keys.")


def _text(table: Table, name: str, key: Declaration) -> object:
    text = table.text(name, None, str(key.get("examples", ["…"])[0]))
    if text is None:
        return key.get("default")
    pattern = str(key.get("pattern", ""))
    if not re.search(pattern, text):
        what = key.get("x-error", f"does not match {pattern}")
        remedy = key.get("x-remedy", "Write it in that form, or leave the key out.")
        raise table.error(name, f"{shown(text)} {what}", remedy)
    return text


def json_schema() -> dict[str, Any]:
    """The JSON schema of the matrix file, with the tables of all plug-ins.

    Raises:
        PluginError: The declaration of a table cannot be loaded.
    """
    schema: dict[str, Any] = json.loads(Path(__file__).with_name("matrix.schema.json").read_text(encoding="utf-8"))
    tables = schema["properties"]
    added = declared_tables()
    tables["engines"]["propertyNames"]["not"]["enum"] += added
    added |= _tables_of_packages({*tables, *added})
    tables |= {name: {"type": "object", "additionalProperties": False, **each} for name, each in added.items()}
    return schema
