"""The plug-in ``slurm``: runs jobs on a cluster, through its queue or inside an allocation."""
