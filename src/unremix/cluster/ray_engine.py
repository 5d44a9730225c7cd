"""Ray: the connection to a cluster, and a map over it by Ray Data."""

from __future__ import annotations

import logging
import os
import pickle
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from unremix.console.suggestions import needed_for

Item = TypeVar("Item")
Result = TypeVar("Result")


def connect() -> Any:
    """The module ``ray``, connected.

    To the cluster that ``RAY_ADDRESS`` names, or one that runs on this machine; if there is none,
    Ray is started on this machine for as long as this process lives.

    Raises:
        ImportError: If Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's coming default
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # its notices are not for our users
    with needed_for("--on ray", "leave it out"):
        import ray
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False, logging_level="ERROR")
    return ray


def node_resources(ray: Any) -> list[dict[str, float]]:
    """CPUs and GPUs of each node that is up: ``{"CPU": 8.0, "GPU": 1.0}``."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def places_for(nodes: Sequence[dict[str, float]], *, cpus: int, gpus: float = 0.0) -> int:
    """How many workers the nodes have room for at a time; a warning if they have none.

    It is only a warning: an autoscaling cluster may add a node that is large enough.

    Args:
        nodes: From :func:`node_resources`.
        cpus: CPUs of a worker, which are on one node.
        gpus: GPUs of a worker.

    Example:
        >>> places_for([{"CPU": 8.0}, {"CPU": 3.0, "GPU": 1.0}], cpus=2)
        5
    """
    places = sum(
        int(min(node.get("CPU", 0) // cpus, node.get("GPU", 0) // gpus if gpus else 1e9))
        for node in nodes
    )
    if not places:
        wanted = f"{cpus} CPUs" + (f" and {gpus:g} GPUs" if gpus else "")
        have = ", ".join(f"{n.get('CPU', 0):g} CPUs and {n.get('GPU', 0):g} GPUs" for n in nodes)
        warnings.warn(
            f"expected a node with {wanted}, which a worker needs, got {have or 'no nodes'}; Ray "
            "waits for such a node: add one, or stop and ask for less",
            stacklevel=3,
        )
    return places


class _Worker:
    """An actor of the pool: it makes a function once and applies it to every item it gets."""

    def __init__(self, make: Callable[[], Callable[[Any], Any]]) -> None:
        self.make = make
        self.function: Callable[[Any], Any] | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        try:
            if self.function is None:
                self.function = self.make()
            result, failed = self.function(pickle.loads(batch["item"][0])), False
        except (OSError, ValueError) as error:  # for the caller to read, not for Ray to wrap
            result, failed = error, True
        return {
            "number": [int(batch["number"][0])],
            "result": [pickle.dumps(result)],
            "failed": [failed],
        }


def ray_map(
    make: Callable[[], Callable[[Item], Result]],
    items: Sequence[Item],
    *,
    threads: int = 1,
    gpus: float = 0.0,
) -> Iterator[tuple[int, Result]]:
    """Apply a function to items on a pool of Ray actors, by Ray Data.

    Ray Data hands out as many items as the actors can take, and gives those of a lost actor to
    another one.

    Args:
        make: Makes the function, once in each actor; it is pickled.
        items: What to apply it to; each is pickled.
        threads: CPUs of an actor.
        gpus: GPUs of an actor.

    Yields:
        The number of an item and the result, in the order in which they are ready.

    Raises:
        OSError: As the function, or what makes it, does.
        ValueError: Likewise.
    """
    if not items:
        return
    ray = connect()
    from ray import data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    places = places_for(node_resources(ray), cpus=threads, gpus=gpus)
    rows = [{"number": n, "item": pickle.dumps(item)} for n, item in enumerate(items)]
    results = data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        _Worker,
        fn_constructor_args=(make,),
        batch_size=1,
        num_cpus=threads,
        num_gpus=gpus,
        compute=data.ActorPoolStrategy(size=max(1, min(places, len(rows)))),
    )
    for row in results.iter_rows():
        result = pickle.loads(row["result"])
        if row["failed"]:
            raise result
        yield row["number"], result
