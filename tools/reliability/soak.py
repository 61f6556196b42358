#!/usr/bin/env python3
"""Row 41: a steady load for a long time, beside clients that misbehave in every way that the other scripts know. No deadlock, no lost
request, counters that add up, memory that stays, and a latency at the end like that at the beginning."""
import os
import random
import signal
import statistics
import threading
import time

import frames
from hostile_frames import bad_fields, garbage, metadata, resets
from serving import Load, Server, Verdict, arguments, count, eventually, load, lost


class Chaos:
    """One misdeed after another, with pauses between them, in a thread."""

    def __init__(self, server: Server, rate: float, pause_s: float):
        self._server, self._rate, self._pause_s = server, rate, pause_s
        self._chance = random.Random(1)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.done: dict[str, int] = {}
        self.errors: list[str] = []

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join(60)

    def _run(self):
        deeds = [self.killed_client, self.short_deadlines, self.burst, self.beams, self.idle_connections, self.frames, self.resets, self.scrapes,
                 self.hang_up_signal]
        while not self._end.wait(self._chance.uniform(0, 2 * self._pause_s)):
            deed = self._chance.choice(deeds)
            try:
                deed()
                self.done[deed.__name__] = self.done.get(deed.__name__, 0) + 1
            except Exception as error:  # counted and shown: a misdeed that fails must not pass for a calm server
                self.errors.append(f"{deed.__name__}: {type(error).__name__}: {error}")

    def killed_client(self):
        client = Load(self._server.target, concurrency=16, requests=100_000, output_tokens="50:200", input_tokens="4:16")
        time.sleep(self._chance.uniform(0.1, 0.6))
        client.process.kill()
        client.process.wait()

    def short_deadlines(self):
        load(self._server.target, concurrency=8, requests=50, timeout=0.02, output_tokens="50:100", input_tokens="4:16")

    def burst(self):
        load(self._server.target, request_rate=20 * self._rate, duration=0.5, output_tokens="4:16", input_tokens="4:16")

    def beams(self):
        load(self._server.target, concurrency=2, requests=6, beam_share=1, num_beams=5, output_tokens="8:24", input_tokens="4:16")

    def idle_connections(self):
        connections = [frames.connect(self._server.port) for _ in range(200)]
        time.sleep(1)
        for connection in connections:
            connection.close()

    def frames(self):
        self._chance.choice((garbage, bad_fields, metadata))(self._server.port)

    def resets(self):
        resets(self._server.port, 2000, 5)

    def scrapes(self):
        for _ in range(50):
            self._server.metrics()

    def hang_up_signal(self):
        os.kill(self._server.process.pid, signal.SIGHUP)


def drift(values: list[float]) -> float:
    """Median of the last third over that of the first, less one."""
    third = max(len(values) // 3, 1)
    return statistics.median(values[-third:]) / statistics.median(values[:third]) - 1


def main() -> int:
    args = arguments(__doc__, minutes=20.0, window_seconds=30.0, load_share=0.25, pause=2.0)
    verdict = Verdict("soak", 41, f"{args.minutes:g} minutes of chaos")
    shape = dict(input_tokens="4:16", output_tokens="8:32", beam_share=0.1, num_beams=3)
    windows, memory = [], []
    with Server(args.model, max_queue=128, max_running=64) as server:
        capacity = load(server.target, concurrency=32, warmup=100, duration=5, **shape)["load"]["requests_per_s"]
        rate = args.load_share * capacity
        end = time.monotonic() + 60 * args.minutes
        with Chaos(server, rate, args.pause) as chaos:
            while time.monotonic() < end and server.alive():
                report = load(server.target, request_rate=rate, duration=args.window_seconds, seed=len(windows), timeout=30, **shape)
                memory.append(server.resident_bytes() / 2**20)
                windows.append(report)
        at_rest = eventually(server.at_rest, 10)
        answers, unaccounted = server.answers(), server.unaccounted()
        exit_code = server.stop()
    verdict.conditions(report)
    loads = [window["load"] for window in windows]
    verdict.figure("server", server.flags)
    verdict.figure("configuration", report["configuration"])
    verdict.figure("misdeeds", chaos.done)
    verdict.figure("misdeeds that failed", chaos.errors[:20])
    verdict.figure("windows", [{"codes": w["codes"], "p50_ms": w["e2e_ms"].get("p50"), "p99_ms": w["e2e_ms"].get("p99")} for w in loads])
    verdict.figure("resident_mib", memory)
    verdict.claim("misdeeds done", sum(chaos.done.values()), sum(chaos.done.values()) > 0)
    gone = sum(lost(window) for window in windows)
    verdict.claim("requests of the steady load without an answer", gone, gone == 0)
    refused = sum(count(window, "RESOURCE_EXHAUSTED") for window in windows)
    other = sum(w["measured"] for w in loads) - refused - sum(count(window, "OK") for window in windows)
    verdict.figure("requests of the steady load refused during bursts", refused)
    verdict.claim("requests of the steady load neither answered OK nor refused", other, other == 0)
    verdict.claim("seconds until nothing runs, waits or holds cache", at_rest, at_rest is not None)
    verdict.claim("a new client is served", answers, answers)
    verdict.claim("accepted requests unaccounted for", unaccounted, unaccounted == 0)
    third = max(len(memory) // 3, 1)
    grown = memory[-1] - memory[third - 1]
    verdict.claim("MiB gained after the first third <= 20", grown, grown <= 20)
    p99 = drift([w["e2e_ms"]["p99"] for w in loads])
    verdict.figure("drift of p50", drift([w["e2e_ms"]["p50"] for w in loads]))
    verdict.claim("drift of p99 <= 0.05", p99, p99 <= 0.05)
    verdict.claim("exit code after SIGTERM", exit_code, exit_code == 0)
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
