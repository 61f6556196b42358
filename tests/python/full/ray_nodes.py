"""Several Ray nodes on this machine, and their worker processes, for the tests of quintet.ray."""

import contextlib
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from server_process import PACKAGE  # noqa: E402

if PACKAGE:  # for the processes that Ray starts
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [PACKAGE, os.environ.get("PYTHONPATH")])
    )
os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # no token file in the user's home
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
import ray  # noqa: E402
import ray.cluster_utils  # noqa: E402


@contextlib.contextmanager
def ray_nodes(*nodes: dict):
    """Runs a cluster with a head node without CPUs and one node for each dict of resources; yields
    its address. Connects this process to it."""
    made = ray.cluster_utils.Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "object_store_memory": 200 << 20},
    )
    try:
        for resources in nodes:
            made.add_node(object_store_memory=200 << 20, **resources)
        made.wait_for_nodes()
        ray.init(made.address, log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield made.address
    finally:
        ray.shutdown()
        made.shutdown()


def processes(name: str) -> dict[int, str]:
    """The command lines of the running processes whose command line contains `name`, by their
    ids."""
    found = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if name in command and state != "Z":
                found[int(folder.name)] = command
    return found


def descendants(root: int) -> set[int]:
    """The ids of the processes that descend from the process `root`."""
    parents = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
    found, more = set(), {root}
    while more:
        found |= more
        more = {child for child, parent in parents.items() if parent in more} - found
    return found - {root}


def own_processes(name: str) -> set[int]:
    """The ids of the processes of this cluster whose command line contains `name`."""
    return set(processes(name)) & descendants(os.getpid())
