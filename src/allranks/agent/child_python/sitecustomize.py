"""Starts the observer in each Python process below a rank; the interpreter finds this module by ``PYTHONPATH``.

It leaves no other trace: it removes its folder from ``sys.path`` and imports the interpreter's own ``sitecustomize``.
It imports little, because every Python program that a test starts waits for it.
"""
# ruff: noqa: INP001 - Python imports it by its name

import os
import sys

_FOLDER = os.path.dirname(__file__)  # noqa: PTH120 - importing pathlib takes longer than everything else here
sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]

if sys.version_info >= (3, 11):  # noqa: UP036 - a test may start any version of Python
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
    sys.modules.setdefault("sitecustomize", _this)  # Python expects the module that it is importing to be there
