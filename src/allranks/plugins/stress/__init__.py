"""The plug-in ``stress``: repeats tests, and finds the causes of intermittent failures."""
