#!/usr/bin/env python3
"""Simulates a fleet of replicas (fleet/), and measures replicas to check the simulator.

    fleet.py simulate SCENARIO.toml             one run; prints a table
    fleet.py size SCENARIO.toml --ttft-p99 200  the smallest fleet that keeps the limits
    fleet.py measure --out FILE                 measures one replica, then two behind HAProxy, and
                                                compares these with the simulator

deploy/SCALING.md explains scenarios by an example. Needs SimPy (tools/requirements.txt).
"""

import argparse
import copy
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from fleet.fields import FieldError  # noqa: E402
from fleet.report import show  # noqa: E402
from fleet.scenario import Scenario, load_scenario  # noqa: E402
from fleet.simulation import Simulation  # noqa: E402
from runs import flag_parser, write_report  # noqa: E402


def run(scenario: Scenario, replicas: int) -> dict:
    """Returns the report of the scenario with another number of replicas at the start."""
    changed = copy.deepcopy(scenario)
    changed.fleet.replicas = replicas
    return Simulation(changed).run()


def keeps(report: dict, limits: dict[str, float | None]) -> bool:
    """Whether every measured request ended OK and the latencies keep `limits`, {"ttft_ms": ms}."""
    if set(report["codes"]) != {"OK"}:
        return False
    return all(ms is None or report[name]["p99"] <= ms for name, ms in limits.items())


def smallest(scenario: Scenario, most: int, limits: dict[str, float | None]) -> tuple[int, dict]:
    """Returns the smallest number of replicas, at most `most`, whose report keeps the limits, and
    that report. Found by bisection: a larger fleet is taken to be no slower. Raises FieldError if
    `most` replicas do not keep them."""
    low, high = 0, 1
    while not keeps(best := run(scenario, high), limits):
        print(f"{high:6d} replicas: limits not kept", flush=True)
        if high == most:
            raise FieldError(f"--most: {most} replicas do not keep the limits:\n{show(best)}")
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        report = run(scenario, middle)
        kept = keeps(report, limits)
        print(f"{middle:6d} replicas: limits {'kept' if kept else 'not kept'}", flush=True)
        if kept:
            high, best = middle, report
        else:
            low = middle
    return high, best


def simulate(args: argparse.Namespace) -> int:
    report = Simulation(load_scenario(args.scenario)).run()
    print(show(report))
    write_report(args.json, report)
    return 0


def size(args: argparse.Namespace) -> int:
    limits = {"ttft_ms": args.ttft_p99, "e2e_ms": args.e2e_p99}
    if all(ms is None for ms in limits.values()):
        raise FieldError("expected --ttft-p99 or --e2e-p99: the fleet needs a limit")
    replicas, report = smallest(load_scenario(args.scenario), args.most, limits)
    print(f"{replicas} replicas keep the limits:\n{show(report)}")
    write_report(args.json, {"replicas": replicas, "limits": limits, "report": report})
    return 0


def measure(args: argparse.Namespace) -> int:
    from fleet.measure import measure as run_measurement  # needs the binary and HAProxy

    return run_measurement(args)


def _add_measure(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--model", help="model directory; default: random weights of T5-small (CPU) or T5-base")
    add("--device", default="cpu", help="device of all replicas, or one of each, separated by ';'")
    add("--dtype", default="auto", help="type of the weights (default: %(default)s)")
    add("--replicas", type=int, default=2, help="replicas behind HAProxy (default: %(default)s)")
    add("--max-running", type=int, default=0, help="rows of a replica; 0: 64 on a CPU, 8 on a GPU")
    add("--seconds", type=float, default=25, help="time of each load (default: %(default)s)")
    add(
        "--loads",
        type=float,
        nargs="+",
        default=[0.3, 0.6, 0.8],
        help="loads as fractions of saturation (default: 0.3 0.6 0.8)",
    )
    add("--out", help="also write the results as JSON to this file, which scenarios can name")


def parser() -> argparse.ArgumentParser:
    top = flag_parser(__doc__)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, function, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=function)
        return command

    _add_measure(add("measure", measure, "Measures replicas and compares them with the simulator."))
    one = add("simulate", simulate, "Simulates a scenario and prints a table.")
    several = add("size", size, "Finds the smallest fleet whose p99 latencies keep limits.")
    for command in (one, several):
        command.add_argument("scenario", type=pathlib.Path, help="TOML file (fleet/scenario.py)")
        command.add_argument("--json", help="also write the report as JSON to this file")
    for name in ("ttft", "e2e"):
        text = f"limit of the 99th percentile of {name.upper()}, in ms"
        several.add_argument(f"--{name}-p99", type=float, metavar="MS", help=text)
    several.add_argument("--most", type=int, default=1024, help="largest fleet that is tried")
    return top


def main() -> int:
    args = parser().parse_args()
    try:
        return args.run(args)
    except (FieldError, RuntimeError) as error:
        print(f"fleet.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
