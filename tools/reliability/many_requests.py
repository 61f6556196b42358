#!/usr/bin/env python3
"""Row 3 of the acceptance table (README.md): 100,000 requests after a warm-up must not increase the
server's memory, and all must be answered."""

from serving import LOAD_CORE, Server, Verdict, arguments, eventually, failures, load, lost


def main() -> int:
    args = arguments(__doc__, requests=100_000, warmup=5_000, concurrency=64)
    verdict = Verdict("many_requests", 3, f"{args.requests} requests")
    shape = dict(
        core=LOAD_CORE,
        concurrency=args.concurrency,
        input_tokens="2:24",
        output_tokens="1:12",
        beam_share=0.05,
        num_beams=3,
    )
    with Server(args.model) as server:
        load(server.target, requests=args.warmup, seed=2, **shape)
        before = server.resident_bytes()
        report = load(server.target, requests=args.requests, **shape)
        at_rest = eventually(server.at_rest, 5)
        grown = (server.resident_bytes() - before) / 2**20
        unaccounted = server.unaccounted()
    verdict.conditions(report)
    verdict.figure("server", server.flags)
    verdict.figure("configuration", report["configuration"])
    verdict.figure("resident_mib_after_warmup", before / 2**20)
    verdict.figure("load", report["load"])
    verdict.claim("MiB gained <= 100", grown, grown <= 100)
    verdict.claim("requests that failed", failures(report), failures(report) == 0)
    verdict.claim("requests without an answer", lost(report), lost(report) == 0)
    verdict.claim(
        "seconds until nothing runs, waits or holds cache <= 1",
        at_rest,
        at_rest is not None and at_rest <= 1,
    )
    verdict.claim("accepted requests unaccounted for", unaccounted, unaccounted == 0)
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
