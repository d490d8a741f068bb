"""The images that jobs run in: their content, their lookup, and their build.

:func:`ensure_image` is the entry point. It imports the Docker SDK's errors and the needs of a build only when
they are needed, because the import of this package is part of every command's start-up.
"""

from allranks.images.base import dockerfile_path
from allranks.images.built_image import BuiltImage, ensure_image

__all__ = ["BuiltImage", "dockerfile_path", "ensure_image"]
