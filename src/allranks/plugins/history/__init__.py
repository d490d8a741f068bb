"""The plug-in ``history``: reads the reports of earlier runs, and records what became of each test."""
