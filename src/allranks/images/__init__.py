"""The images and Python environments that jobs run in: their recipes, and their lookup, build and removal."""
