"""The docs site: Sphinx reads the Markdown pages of this folder (``nox -s docs``).

Sphinx, since half of the reference comes from docstrings. Markdown, since GitHub shows the same files as they are.
"""

from importlib import metadata

from sphinx.application import Sphinx
from sphinx.ext.autodoc.mock import _MockObject

project = "allranks"
author = "the allranks maintainers"
release = metadata.version("allranks")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
autodoc_mock_imports = ["torch"]  # hundreds of megabytes, and docstrings need none of it
autodoc_preserve_defaults = True  # the value of a default may be the environment of this build
napoleon_use_ivar = True  # a field of a dataclass is described once
autodoc_member_order = "bysource"
add_module_names = False  # suites import from allranks.testing, not from the modules that hold the names

html_theme = "furo"
html_title = "allranks"


def _either(one: object, _other: object) -> object:
    """The union of a mocked class and another type, for annotations such as ``ProcessGroup | None``."""
    return one


# Sphinx's mocks have no unions (as of 9.0), and Python 3.13 and older evaluate annotations.
_MockObject.__or__ = _MockObject.__ror__ = _either


def _without_arguments(
    _app: Sphinx, _kind: str, _name: str, shown: object, _options: object, signature: str | None, returned: str | None
) -> tuple[str, str | None] | None:
    """The signature of a fixture has its value alone: what it is made from is not for those who ask for it."""
    return ("()", returned) if signature and type(shown).__name__ == "FixtureFunctionDefinition" else None


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-signature", _without_arguments)
