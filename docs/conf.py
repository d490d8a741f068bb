"""The docs site: Sphinx reads the Markdown pages of this folder (``nox -s docs``).

Sphinx, since half of the reference comes from docstrings. Markdown, since GitHub shows the same files as they are.
"""

from importlib import metadata

project = "allranks"
author = "the allranks maintainers"
release = metadata.version("allranks")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
autodoc_mock_imports = ["torch"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = "allranks"
