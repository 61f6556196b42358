#!/usr/bin/env python3
"""Row 42 of the acceptance table (README.md): the wall clock jumps one hour forward and back while
requests run.

No deadline may expire early or late: requests that cannot finish in time must still end with
DEADLINE_EXCEEDED at their deadline. Needs Debian's libfaketime, which shifts the wall clock of the
server only; the clocks of the clients do not change.
"""

import datetime
import pathlib
import tempfile
import time

from serving import LOAD_CORE, Load, Server, Verdict, arguments, count, failures, load, lost

LIBRARY = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"
HOUR_S = 3600


def log_time(log: str, words: str) -> datetime.datetime:
    """Returns the time of the first log line that contains `words`."""
    line = next(line for line in log.splitlines() if words in line)
    return datetime.datetime.fromisoformat(" ".join(line.split()[:2]))


def main() -> int:
    args = arguments(__doc__, seconds=4.0, deadline=1.5)
    if not pathlib.Path(LIBRARY).exists():
        raise SystemExit(
            "libfaketime is not installed: apt-get install --no-install-recommends libfaketime"
        )
    verdict = Verdict("clock_jump", 42, "the wall clock jumps by an hour")
    with tempfile.NamedTemporaryFile("w") as clock:

        def jump(seconds: int):
            clock.seek(0)
            clock.truncate()
            clock.write(f"{seconds:+d}\n")
            clock.flush()

        jump(0)
        environment = {
            "LD_PRELOAD": LIBRARY,
            "FAKETIME_TIMESTAMP_FILE": clock.name,
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        # --max-timeout is shorter than the clients' deadlines, so that the server ends the long
        # requests by its own clock.
        with Server(
            args.model, environment=environment, stall_timeout=15, max_timeout=args.deadline
        ) as server:
            for name, offset in (
                ("forward", HOUR_S),
                ("back", 0),
                ("an hour back", -HOUR_S),
                ("forward again", 0),
            ):
                short = Load(
                    server.target,
                    core=LOAD_CORE,
                    concurrency=8,
                    duration=2 * args.seconds,
                    timeout=60,
                    input_tokens="4:16",
                    output_tokens="8:32",
                )
                # These requests need more time than the deadline allows.
                long = Load(
                    server.target,
                    core=LOAD_CORE,
                    concurrency=2,
                    requests=2,
                    timeout=60,
                    input_tokens="4:16",
                    output_tokens=4096,
                    beam_share=1,
                    num_beams=4,
                    unary=True,
                )
                time.sleep(args.seconds / 4)
                jump(offset)
                long_report, short_report = long.report(), short.report()
                verdict.conditions(short_report)
                failed, unanswered = failures(short_report), lost(short_report) + lost(long_report)
                verdict.claim(
                    f"{name}: short requests that failed, of {short_report['load']['measured']}",
                    failed,
                    failed == 0,
                )
                verdict.claim(f"{name}: requests without an answer", unanswered, unanswered == 0)
                late = long_report["load"]["codes"].get(
                    "DEADLINE_EXCEEDED", {"count": 0, "answered_ms": {"p50": 0, "max": 0}}
                )
                verdict.claim(
                    f"{name}: requests ended by their deadline, of 2",
                    late["count"],
                    late["count"] == 2,
                )
                off_s = max(
                    abs(late["answered_ms"][which] / 1e3 - args.deadline)
                    for which in ("p50", "max")
                )
                verdict.claim(f"{name}: seconds that they ended off it <= 0.5", off_s, off_s <= 0.5)
                report = load(
                    server.target,
                    concurrency=4,
                    requests=20,
                    timeout=60,
                    input_tokens=4,
                    output_tokens=8,
                )
                verdict.claim(
                    f"{name}: requests answered OK after it, of 20",
                    count(report, "OK"),
                    count(report, "OK") == 20,
                )
            unaccounted = server.unaccounted()
            jump(HOUR_S)
            exit_code = server.stop()
            shifted = log_time(server.log(), "draining") - log_time(server.log(), "info serving")
    verdict.claim(
        "seconds between two lines of its log, the last after a jump",
        shifted.total_seconds(),
        shifted.total_seconds() >= HOUR_S,
    )
    verdict.claim("accepted requests unaccounted for", unaccounted, unaccounted == 0)
    verdict.claim("exit code after SIGTERM", exit_code, exit_code == 0)
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
