"""What the tests of the fleet simulator (tools/bench/fleet) share: models of a replica and a
simulation of a scenario."""

import pathlib

from fleet import fields
from fleet.scenario import Scenario
from fleet.service import ServiceModel
from fleet.simulation import Simulation

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BENCH = SOURCE / "tools" / "bench"
# A replica that runs one request at a time, 1 ms for each token.
SERIAL = {"step_ms": [[1, 1.0]], "encode_ms": [[1, 0.0]], "max_running": 1, "max_queue": 1 << 20}
# A replica of the speed of T5-base on a GPU.
BATCHING = {
    "step_ms": [[1, 0.26], [8, 0.3], [32, 0.4], [128, 0.8]],
    "encode_ms": [[1, 0.3], [128, 0.4], [16384, 7.0]],
    "max_running": 64,
    "max_batch_tokens": 4096,
    "max_queue": 1 << 20,
}


def service(**members) -> ServiceModel:
    return fields.read(ServiceModel, members, "service")


def scenario(model: ServiceModel, **members) -> Scenario:
    made = fields.read(Scenario, members, "scenario")
    made.model = model
    return made


def lengths(tokens: int) -> dict:
    return {"low": tokens, "high": tokens}


def run(model: ServiceModel, **members) -> tuple[dict, Simulation]:
    simulation = Simulation(scenario(model, **members))
    return simulation.run(), simulation
