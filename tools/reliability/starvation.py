#!/usr/bin/env python3
"""The reverse of row 5 of the acceptance table (README.md): while 40 HIGH clients keep the engine
and its queue busy, NORMAL requests must get their first token within 15 s after their arrival and
LOW requests within 30 s.
"""

from serving import LOAD_CORE, SERVER_CORE, Load, Server, Verdict, arguments, failures, lost


def main() -> int:
    args = arguments(
        __doc__,
        seconds=90.0,
        max_running=4,
        high_clients=40,
        other_clients=4,
        input_tokens="4:16",
        output_tokens="256:512",
    )
    verdict = Verdict("starvation", 5, f"NORMAL and LOW against {args.high_clients} HIGH clients")
    shape = dict(
        core=LOAD_CORE,
        input_tokens=args.input_tokens,
        output_tokens=args.output_tokens,
        timeout=300,
    )
    with Server(args.model, core=SERVER_CORE, max_running=args.max_running) as server:
        high = Load(
            server.target,
            concurrency=args.high_clients,
            duration=args.seconds + 30,
            priority="high",
            **shape,
        )
        others = {
            name: Load(
                server.target,
                concurrency=args.other_clients,
                duration=args.seconds,
                priority=name,
                seed=seed,
                **shape,
            )
            for seed, name in enumerate(("normal", "low"), start=2)
        }
        reports = {name: load.report() for name, load in others.items()}
        outlived = high.running()
        reports["high"] = high.stop()
    verdict.conditions(reports["high"])
    verdict.figure("server", server.flags)
    for name, report in reports.items():
        verdict.figure(name, report["load"])
        verdict.claim(
            f"{name.upper()} requests that failed or were lost, of {report['load']['measured']}",
            failures(report) + lost(report),
            failures(report) + lost(report) == 0,
        )
    verdict.claim("HIGH load lasted longer than the others", outlived, outlived)
    for name, limit_s in (("normal", 15), ("low", 30)):
        slowest_s = reports[name]["load"]["ttft_ms"]["max"] / 1e3
        verdict.claim(
            f"seconds to the first token of the slowest {name.upper()} request <= {limit_s}",
            slowest_s,
            slowest_s <= limit_s,
        )
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
