"""The images that jobs run in: their recipes, and their lookup, build and removal.

:func:`ensure_image` is the entry point. It imports the Docker SDK and the modules of a build only when they are needed,
since every command imports this package.
"""

from allranks.images.base import dockerfile_path
from allranks.images.built_image import BuiltImage, ensure_image

__all__ = ["BuiltImage", "dockerfile_path", "ensure_image"]
