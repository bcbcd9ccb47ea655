"""A Ray cluster of two nodes on this machine, of one core each; tests that need one are skipped without Ray."""

import contextlib
import os
from pathlib import Path

import pytest


@contextlib.contextmanager
def two_nodes():
    """A cluster, whose tasks find the checkout, and its second node, which a test may kill."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'rcjax[ray]'")
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 100_000_000, "include_dashboard": False}
    with pytest.MonkeyPatch.context() as patch:
        root = str(Path(__file__).parents[2])
        patch.setenv("PYTHONPATH", os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]))
        patch.setenv("RAY_worker_niceness", "0")  # Ray's 15 starves on a machine that is busy
        cluster = Cluster(initialize_head=True, head_node_args=small)
        try:
            yield cluster, cluster.add_node(num_cpus=1, object_store_memory=100_000_000)
        finally:
            cluster.shutdown()
