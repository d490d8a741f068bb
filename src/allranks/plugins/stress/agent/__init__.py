"""The part of the plug-in that runs inside jobs."""
