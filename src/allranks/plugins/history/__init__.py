"""The plug-in ``history``: records and compares the outcomes of earlier runs."""
