"""Where trainings run: in processes of this machine, or on a Ray cluster."""

from attnlab.cluster import Cluster
from attnlab.experiments.local import LocalPool
from attnlab.experiments.on_ray import RayPool
from attnlab.experiments.pool import Pool


def pool_of(cluster: Cluster | None, processes: int | None) -> Pool:
    """`processes`: trainings at a time; None for as many as there are cores, and one on a GPU."""
    return LocalPool(processes) if cluster is None else RayPool(cluster, processes)
