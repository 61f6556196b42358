#!/usr/bin/env python3
"""Row 9 of the acceptance table (README.md): a client with streams in flight is killed by SIGKILL,
100 times. One second after each kill the server must have no request that is running, queued or
holding KV cache pages. At the end it must have no open call.
"""

import random
import re
import time

from serving import LOAD_CORE, Load, Server, Verdict, arguments, eventually


def main() -> int:
    args = arguments(__doc__, kills=100, concurrency=64)
    verdict = Verdict("killed_clients", 9, f"client killed {args.kills} times")
    chance = random.Random(1)
    slowest, stuck, interrupted = 0.0, 0, 0
    with Server(args.model) as server:
        for turn in range(args.kills):
            client = Load(
                server.target,
                core=LOAD_CORE,
                concurrency=args.concurrency,
                requests=1_000_000,
                output_tokens="200:400",
                input_tokens="4:16",
                seed=turn,
            )
            eventually(lambda: server.metrics()["quintet_requests_running"] > 0, 10)
            time.sleep(chance.uniform(0, 0.2))
            interrupted += server.metrics()["quintet_requests_running"] > 0
            client.process.kill()
            client.process.wait()
            seconds = eventually(server.at_rest, 5)
            stuck += seconds is None
            slowest = max(slowest, seconds or 0.0)
        unaccounted, answers = server.unaccounted(), server.answers()
        exit_code = server.stop()
        open_calls = int(re.search(r"draining: (\d+) calls open", server.log()).group(1))
    verdict.claim("kills that met running requests", interrupted, interrupted == args.kills)
    verdict.claim("kills after which something stayed", stuck, stuck == 0)
    verdict.claim("seconds until the slowest was at rest <= 1", slowest, slowest <= 1)
    verdict.claim("calls open at the end", open_calls, open_calls == 0)
    verdict.claim("accepted requests unaccounted for", unaccounted, unaccounted == 0)
    verdict.claim("a new client is served", answers, answers)
    verdict.claim("exit code after SIGTERM", exit_code, exit_code == 0)
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
