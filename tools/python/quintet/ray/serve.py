"""An application of Ray Serve: the gRPC service and the HTTP API of `quintet serve`, on replicas.

    from ray import serve
    import quintet.ray.serve

    serve.start(grpc_options=quintet.ray.serve.grpc_options(port=9000))
    serve.run(quintet.ray.serve.application("flan-t5-base", replicas=(1, 8), num_gpus=1))

Each replica runs `quintet serve` as a process of its own, so requests are checked, queued and
answered as by a server: the same messages, errors and status codes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quintet.errors import InvalidArgumentError
from quintet.ray.data import Actors, Pool
from quintet.ray.needs import need
from quintet.ray.replica import Replica
from quintet.ray.server import flags_of
from quintet.ray.work import local_options, local_path

if TYPE_CHECKING:
    from ray.serve import Application
    from ray.serve.config import gRPCOptions

# For `grpc_servicer_functions` of Ray Serve's gRPC options.
SERVICER = "quintet.ray.proxy.add_inference_to_server"


def grpc_options(port: int = 9000, **options: Any) -> gRPCOptions:
    """The gRPC options for `ray.serve.start`. `options`: further fields of
    ray.serve.config.gRPCOptions."""
    return need("ray.serve.config").gRPCOptions(
        port=port, grpc_servicer_functions=[SERVICER], **options
    )


def application(
    model: str | os.PathLike[str],
    *,
    replicas: Actors = 1,
    target_ongoing_requests: float = 64,
    max_ongoing_requests: int = 256,
    max_queued_requests: int = 4096,
    num_cpus: float = 1,
    num_gpus: float = 0,
    drain_timeout: float = 60,
    name: str = "quintet",
    flags: Mapping[str, Any] | None = None,
    deployment: Mapping[str, Any] | None = None,
    **options: Any,
) -> Application:
    """Makes an application for `ray.serve.run`.

    Args:
        model: the argument of quintet.Model. A path must exist on every node; a path that exists
            here is made absolute.
        replicas: number of replicas, or the least and the most, between which Ray Serve scales.
        target_ongoing_requests: requests for each replica, waiting ones included, that the scaling
            aims at. Without effect if the number of replicas is fixed.
        max_ongoing_requests: requests that a replica has at a time; the others wait in the proxies.
        max_queued_requests: requests that wait in each proxy. Further ones end as
            RESOURCE_EXHAUSTED; -1: no limit.
        num_cpus: CPUs of a replica; also its compute threads, unless `threads` is given.
        num_gpus: GPUs of a replica; 0.5 places two on each GPU. The device is "cuda" if this is
            above 0, otherwise "cpu", unless `device` is given.
        drain_timeout: seconds in which a replica that is replaced may finish its requests.
        name: name of the deployment.
        flags: further flags of `quintet serve`, such as {"max_queue": 512}.
        deployment: further options of ray.serve.deployment.
        **options: those of quintet.Model.

    Raises:
        TypeError, InvalidArgumentError: an argument is wrong.
    """
    pool = Pool(replicas, num_cpus, num_gpus, name="replicas")
    given = pool.defaults() | local_options(options)
    path = local_path(model)
    flags_of(path, given, flags or {})  # checks
    settings: dict[str, Any] = {
        "name": name,
        "max_ongoing_requests": max_ongoing_requests,
        "max_queued_requests": max_queued_requests,
        "graceful_shutdown_timeout_s": drain_timeout,
        "ray_actor_options": {"num_cpus": pool.num_cpus, "num_gpus": pool.num_gpus},
        **_scale(pool, target_ongoing_requests),
        **(deployment or {}),
    }
    made = need("ray.serve").deployment(Replica, **settings)
    return made.bind(path, given, dict(flags or {}))


def _scale(pool: Pool, target: float) -> dict[str, Any]:
    if pool.least == pool.most:
        return {"num_replicas": pool.least}
    scaling = {
        "min_replicas": pool.least,
        "max_replicas": pool.most,
        "target_ongoing_requests": target,
    }
    return {"autoscaling_config": scaling}


def build(arguments: Mapping[str, Any]) -> Application:
    """The application for a configuration file of Ray Serve with the `import_path`
    "quintet.ray.serve:build" and the arguments of `application` as `args`. `replicas` may be a list
    of two numbers."""
    given = dict(arguments)
    if "model" not in given:
        raise InvalidArgumentError("args: model is missing")
    replicas = given.pop("replicas", 1)
    return application(
        given.pop("model"),
        replicas=tuple(replicas) if isinstance(replicas, list) else replicas,
        **given,
    )
