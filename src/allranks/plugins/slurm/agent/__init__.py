"""The part of the plug-in that runs on the nodes of a cluster."""
