"""The plug-in ``slurm``: jobs on the nodes of a cluster, by its queue or inside an allocation."""
