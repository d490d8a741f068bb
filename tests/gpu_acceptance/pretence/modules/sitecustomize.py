"""Imported by every Python of a pretended acceptance at its start: torch then says that it is built without CUDA.

A torch with CUDA would have each job try its GPUs first, and without a driver these would be sick.
"""

import importlib.util
import sys

if spec := importlib.util.find_spec("torch"):
    for folder in spec.submodule_search_locations or ():
        version = importlib.util.spec_from_file_location("torch.version", f"{folder}/version.py")
        if version and version.loader:
            module = importlib.util.module_from_spec(version)
            version.loader.exec_module(module)
            module.cuda = None
            sys.modules["torch.version"] = module
