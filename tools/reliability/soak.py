#!/usr/bin/env python3
"""Row 41 of the acceptance table (README.md): a steady load for a long time, together with clients
that misbehave in all the ways that the other scripts test. There must be no deadlock and no lost
request; counters must be consistent, memory constant, and the latency at the end the same as at the
beginning.

The run consists of periods, and each period has two halves. In the first half every kind of misuse
happens once, at a fixed time, so all periods contain the same misuse. The second half is quiet: it
has only the steady load. The first half of every period has the same steady load, with the same
arrival times, so the latencies of the first halves of different periods can be compared with each
other. The same is true of the quiet halves. The first halves show the latency during misuse, the
quiet halves what the misuse left behind.
"""

import gzip
import os
import random
import signal
import socket
import statistics
import struct
import time

import frames
from hostile_frames import bad_fields, garbage, metadata, resets
from serving import (
    LOAD_CORE,
    SERVER_CORE,
    Load,
    Server,
    Verdict,
    arguments,
    count,
    eventually,
    load,
)


TOKENIZE = "/quintet.v1.Inference/Tokenize"
ENCODE_STREAM = "/quintet.v1.Inference/EncodeStream"
WATCH = "/grpc.health.v1.Health/Watch"
BOMB = gzip.compress(b"a" * (1 << 28), 9)


def _varint(value: int) -> bytes:
    data = b""
    while value >= 128:
        data += bytes((value % 128 + 128,))
        value //= 128
    return data + bytes((value,))


def _message(data: bytes, flag: int = 0) -> bytes:
    return bytes((flag,)) + struct.pack(">I", len(data)) + data


class Chaos:
    """The clients that misbehave: one method for each kind of misuse."""

    def __init__(self, server: Server, rate: float):
        self._server, self._rate = server, rate
        self._chance = random.Random(1)
        self.done: dict[str, int] = {}
        self.errors: list[str] = []

    def run(self, seconds: float):
        """Runs each kind of misuse once. Their start times are spread over `seconds`."""
        deeds = [
            self.killed_client,
            self.idle_connections,
            self.frames,
            self.scrapes,
            self.failing_items,
            self.compressed,
            self.endless_message,
            self.half_messages,
            self.burst,
            self.idle_streams,
            self.unread_answers,
            self.long_texts,
            self.slow_http,
            self.long_timeouts,
            self.beams,
            self.resets,
            self.hang_up_signal,
            self.short_deadlines,
        ]
        begin = time.monotonic()
        for i, deed in enumerate(deeds):
            time.sleep(max(0.0, begin + i * seconds / len(deeds) - time.monotonic()))
            try:
                deed()
                self.done[deed.__name__] = self.done.get(deed.__name__, 0) + 1
            except Exception as error:  # a misuse that failed must not look like stability
                self.errors.append(f"{deed.__name__}: {type(error).__name__}: {error}")

    def killed_client(self):
        client = Load(
            self._server.target,
            concurrency=16,
            requests=100_000,
            output_tokens="50:200",
            input_tokens="4:16",
        )
        time.sleep(self._chance.uniform(0.1, 0.6))
        client.process.kill()
        client.process.wait()

    def _load(self, **flags):
        load(self._server.target, input_tokens="4:16", **flags)

    def short_deadlines(self):
        self._load(concurrency=8, requests=50, timeout=0.02, output_tokens="50:100")

    def burst(self):
        """Sends a burst that keeps the queue full for a while. A shorter one would make the waiting
        time of its last requests depend on a single moment."""
        self._load(request_rate=20 * self._rate, duration=2, output_tokens="4:16")

    def beams(self):
        self._load(concurrency=2, requests=6, beam_share=1, num_beams=5, output_tokens="8:24")

    def idle_connections(self):
        connections = [frames.connect(self._server.port) for _ in range(200)]
        time.sleep(1)
        for connection in connections:
            connection.close()

    def frames(self):
        for kind in (garbage, bad_fields, metadata):
            kind(self._server.port)

    def resets(self):
        resets(self._server.port, 2000, 5)

    def scrapes(self):
        for _ in range(50):
            self._server.metrics()

    def failing_items(self):
        """Makes EncodeStream calls whose items have no input. Each call must fail at its first
        item."""
        for _ in range(5):
            peer = frames.Peer(self._server.port)
            for stream in range(1, 41, 2):
                peer.open(stream, frames.request_fields(ENCODE_STREAM))
                list(peer.send(stream, _message(b"\x10\x01") * 40))
            peer.pump(0.05)
            peer.close()

    def compressed(self):
        """Sends compressed messages of 0.25 MB, each of which expands to 0.25 GB of the same
        letter."""
        peer = frames.Peer(self._server.port)
        for stream in range(1, 9, 2):
            peer.open(stream, frames.request_fields(TOKENIZE, more=(("grpc-encoding", "gzip"),)))
            list(peer.send(stream, _message(BOMB, flag=1), last=True))
        peer.pump(0.2)
        peer.close()

    def endless_message(self):
        """Sends the beginning of a message whose declared length is one gigabyte, but never its
        end."""
        peer = frames.Peer(self._server.port)
        peer.open(1, frames.request_fields(TOKENIZE))
        list(peer.send(1, b"\0" + struct.pack(">I", 1 << 30)))
        list(peer.send(1, b"x" * 16384, times=64 * 32))
        peer.close()

    def half_messages(self):
        peers = [frames.Peer(self._server.port) for _ in range(4)]
        for peer in peers:
            for stream in range(1, 401, 2):
                peer.open(stream, frames.request_fields())
                list(peer.send(stream, b"\0\0\0\1\0half"))
        time.sleep(0.5)
        for peer in peers:
            peer.close()

    def idle_streams(self):
        peers = [frames.Peer(self._server.port) for _ in range(4)]
        for peer in peers:
            for stream in range(1, 1001, 2):
                peer.open(
                    stream, frames.request_fields(ENCODE_STREAM if stream % 4 == 1 else WATCH)
                )
                peer.pump()
        time.sleep(0.5)
        for peer in peers:
            peer.close()

    def _tokenize(self, peer, text: bytes, calls: int):
        """Tokenizes `text` in several calls, and closes the connection half a second later."""
        message = _message(b"\x12" + _varint(len(text)) + text)
        for stream in range(1, 2 * calls, 2):
            peer.open(stream, frames.request_fields(TOKENIZE))
            list(peer.send(stream, message, last=True))
        time.sleep(0.5)
        peer.close()

    def unread_answers(self):
        """Requests responses of at least one megabyte for a client that does not let the server
        send any: its flow-control window is 0."""
        peer = frames.Peer(self._server.port, initial_window=0)
        self._tokenize(peer, b"a b " * (1 << 16), calls=10)

    def long_texts(self):
        """Tokenizes texts of one megabyte each. Unlike in unread_answers, the client has the
        default flow-control window."""
        self._tokenize(frames.Peer(self._server.port), b"abcd" * (1 << 18), calls=4)

    def slow_http(self):
        """Sends half of an HTTP request on each of 200 connections. Meanwhile the server must
        answer a probe of /healthz."""
        connections = [
            socket.create_connection(("127.0.0.1", self._server.http_port), timeout=5)
            for _ in range(200)
        ]
        for connection in connections:
            connection.sendall(b"GET /heal")
        status, _ = self._server.get("/healthz", timeout_s=1)
        for connection in connections:
            connection.close()
        if status != 200:
            raise RuntimeError(f"/healthz answered {status}")

    def long_timeouts(self):
        """Sends requests with a grpc-timeout of thousands of digits, all of which gRPC logs."""
        peer = frames.Peer(self._server.port)
        for stream in range(1, 201, 2):
            peer.open(stream, frames.request_fields(more=(("grpc-timeout", "9" * 4000),)))
            peer.socket.sendall(frames.reset_frame(stream))
            peer.pump()
        peer.close()

    def hang_up_signal(self):
        os.kill(self._server.process.pid, signal.SIGHUP)


def drift(values: list[float]) -> float:
    """Returns the relative change of the values: the median of the last third divided by that of
    the first third, minus 1."""
    third = max(len(values) // 3, 1)
    return statistics.median(values[-third:]) / statistics.median(values[:third]) - 1


def main() -> int:
    args = arguments(__doc__, minutes=20.0, half_seconds=15.0, load_share=0.25)
    verdict = Verdict("soak", 41, f"{args.minutes:g} minutes of chaos")
    os.sched_setaffinity(0, {int(LOAD_CORE)})  # all clients, including the misbehaving ones
    shape = dict(input_tokens="4:16", output_tokens="8:32", beam_share=0.1, num_beams=3)
    halves, memory = {"during misdeeds": [], "quiet": []}, []
    with Server(args.model, core=SERVER_CORE, max_queue=128, max_running=64) as server:
        capacity = load(server.target, concurrency=32, warmup=100, duration=5, **shape)["load"][
            "requests_per_s"
        ]
        rate = args.load_share * capacity
        chaos = Chaos(server, rate)
        steady = dict(
            request_rate=rate, warmup=int(rate), duration=args.half_seconds, timeout=30, **shape
        )
        end = time.monotonic() + 60 * args.minutes
        while time.monotonic() < end and server.alive():
            misdeed_load = Load(server.target, seed=1, **steady)
            chaos.run(args.half_seconds)
            halves["during misdeeds"].append(misdeed_load.report()["load"])
            report = load(server.target, seed=2, **steady)
            halves["quiet"].append(report["load"])
            memory.append(server.resident_bytes() / 2**20)
        at_rest = eventually(server.at_rest, 10)
        answers, unaccounted = server.answers(), server.unaccounted()
        exit_code = server.stop()
    verdict.conditions(report)
    verdict.figure("server", server.flags)
    verdict.figure("configuration", report["configuration"])
    verdict.figure("misdeeds", chaos.done)
    verdict.figure("misdeeds that failed", chaos.errors[:20])
    for kind, loads in halves.items():
        verdict.figure(
            kind,
            [
                {
                    "codes": w["codes"],
                    "p50_ms": w["e2e_ms"].get("p50"),
                    "p99_ms": w["e2e_ms"].get("p99"),
                }
                for w in loads
            ],
        )
        verdict.figure(f"{kind}: drift of p50", drift([w["e2e_ms"]["p50"] for w in loads]))
    verdict.figure("resident_mib", memory)
    each = min(chaos.done.values(), default=0)
    verdict.claim(
        "times that every misdeed was done, of as many periods", each, each == len(memory)
    )
    loads = halves["during misdeeds"] + halves["quiet"]
    gone = sum(w["sent"] - w["answered"] for w in loads)
    verdict.claim("requests of the steady load without an answer", gone, gone == 0)
    refused = sum(count({"load": w}, "RESOURCE_EXHAUSTED") for w in halves["during misdeeds"])
    other = sum(w["measured"] - count({"load": w}, "OK") for w in loads) - refused
    verdict.figure("requests of the steady load refused during bursts", refused)
    verdict.claim("other requests of the steady load that were not answered OK", other, other == 0)
    verdict.claim("seconds until nothing runs, waits or holds cache", at_rest, at_rest is not None)
    verdict.claim("a new client is served", answers, answers)
    verdict.claim("accepted requests unaccounted for", unaccounted, unaccounted == 0)
    third = max(len(memory) // 3, 1)
    grown = memory[-1] - memory[third - 1]
    verdict.claim("MiB gained after the first third <= 20", grown, grown <= 20)
    for kind, loads in halves.items():
        p99 = drift([w["e2e_ms"]["p99"] for w in loads])
        verdict.claim(f"{kind}: drift of p99 <= 0.05", p99, p99 <= 0.05)
    verdict.claim("exit code after SIGTERM", exit_code, exit_code == 0)
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
