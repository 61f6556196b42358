#!/usr/bin/env python3
"""Measures what tracing costs a server: its CPU time per request and its requests per second with
traces of --ratio of the requests exported, relative to a server without tracing.

Both servers run the whole time, on one core; the loads, on another core, take turns: the same
requests for one and then for the other, in alternating order. A pair of loads gives one ratio.
CPU time depends less than throughput on what else the machine does. A small collector in this
process takes the spans. The report has all ratios, their medians, and the intervals of
plus or minus two standard errors of the means.
usage: tracing.py [--ratio 0.01] [--pairs N] [--requests N] [--out FILE]
"""

import argparse
import http.server
import json
import pathlib
import statistics
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "reliability"))
from serving import LOAD_CORE, SERVER_CORE, Server, failures, load  # noqa: E402


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes every export and counts them."""

    exports = 0

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        Collector.exports += 1
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def cpu_seconds(server):
    """CPU time of all threads of a server. Unlike /proc/PID/stat it has no ticks of 10 ms."""
    tasks = pathlib.Path(f"/proc/{server.process.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def measure(server, args):
    """Returns the CPU seconds per request, and the requests per second, of one load."""
    before = cpu_seconds(server)
    report = load(
        server.target,
        core=LOAD_CORE,
        requests=args.requests,
        concurrency=args.concurrency,
        unary=True,
        input_tokens="8:24",
        output_tokens=8,
        shared_prompts=512,
    )
    if failures(report):
        raise RuntimeError(f"requests failed: {report}")
    return (cpu_seconds(server) - before) / args.requests, report["load"]["requests_per_s"]


def interval(ratios):
    mean = statistics.mean(ratios)
    return mean, 2 * statistics.stdev(ratios) / len(ratios) ** 0.5


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ratio", default="0.01")
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": args.ratio,
    }
    with (
        Server(core=SERVER_CORE) as plain,
        Server(core=SERVER_CORE, environment=environment) as traced,
    ):
        for server in (plain, traced):
            measure(server, args)  # warm-up
        pairs = []
        for i in range(args.pairs):
            order = (plain, traced) if i % 2 == 0 else (traced, plain)
            of = {server: measure(server, args) for server in order}
            pairs.append([of[plain], of[traced]])
    cpu = [traced[0] / plain[0] for plain, traced in pairs]
    throughput = [traced[1] / plain[1] for plain, traced in pairs]
    report = dict(
        ratio=float(args.ratio),
        requests=args.requests,
        concurrency=args.concurrency,
        exports=Collector.exports,
        cpu_us_per_request=dict(
            plain=statistics.median(p[0] for p, _ in pairs) * 1e6,
            traced=statistics.median(t[0] for _, t in pairs) * 1e6,
        ),
        pairs=pairs,
    )
    for name, ratios in (("cpu_per_request", cpu), ("requests_per_s", throughput)):
        mean, error = interval(ratios)
        report[name] = dict(median=statistics.median(ratios), mean=mean, two_standard_errors=error)
        print(f"{name:16s} median {report[name]['median']:.4f}, mean {mean:.4f} +- {error:.4f}")
    print(f"{Collector.exports} exports")
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
