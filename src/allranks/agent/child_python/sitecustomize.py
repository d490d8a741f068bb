"""Python imports this when it starts, in each process below a rank: the folder is on ``PYTHONPATH`` there.

It starts the observer and leaves no other trace: the interpreter's own ``sitecustomize`` runs after it, and the folder
is not on ``sys.path``. It imports little, because every Python program of a test waits for it.
"""
# ruff: noqa: INP001 - Python imports it by this name alone

import os
import sys

_FOLDER = os.path.dirname(__file__)  # noqa: PTH120 - pathlib takes longer than all the rest
sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]

if sys.version_info >= (3, 11):  # noqa: UP036 - a test may run any Python
    sys.path.insert(0, os.path.dirname(_FOLDER))  # noqa: PTH120
    import child_observer  # type: ignore[import-not-found]

    del sys.path[0]
    child_observer.observe_this_program()

_this = sys.modules.pop("sitecustomize")
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401 - the interpreter's own
except ModuleNotFoundError as error:
    if error.name != "sitecustomize":
        raise
finally:
    sys.modules.setdefault("sitecustomize", _this)  # Python looks there for the one that it is importing
