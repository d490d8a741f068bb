"""The plug-in ``stress``: repeats tests, and finds what makes them fail."""
