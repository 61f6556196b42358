#!/usr/bin/env python3
"""Row 18 of the acceptance table (README.md): a server at its memory limit. First the address space
is limited (`ulimit -v`), then, with --cgroup, resident memory (memory.max).

Without pauses, clients send the requests that take most memory: encoding 64 inputs of 1,500 tokens
without pooling, tokenizing 1 MiB of text with spans, and detokenizing a million ids; they also send
short generations and streams. A call may fail only by being rejected (RESOURCE_EXHAUSTED). The
server must survive, stay below the limit and afterwards serve as before.

Needs grpcio (tools/requirements.txt). --cgroup DIR is an empty cgroup with a memory controller that
this user may write to, for example from `systemd-run --user --scope -p Delegate=yes`. Without
--cgroup the part with memory.max is skipped with a message.
"""

import collections
import pathlib
import random
import sys
import threading
import time

from serving import SOURCE, Server, Verdict, arguments

sys.path.append(str(SOURCE / "build" / "python"))  # unless quintet-engine is installed
import grpc  # noqa: E402
from quintet.wire import SERVICE, pb  # noqa: E402

MIB = 1 << 20
TEXT = ("the quick brown fox jumps over the lazy dog " * (MIB // 44 + 1))[:MIB]
INPUTS = [[3 + (7 * i + j) % 20 for j in range(1500)] for i in range(64)]
IDS = [3 + i % 20 for i in range(1_000_000)]
METHODS = {
    "encode": "Encode",
    "tokenize": "Tokenize",
    "detokenize": "Detokenize",
    "generate": "Generate",
    "stream": "GenerateStream",
}


def requests() -> dict[str, bytes]:
    """Returns the serialized requests. They are built once, because building one takes longer than
    the server's response to it."""
    decoding = pb.DecodingOptions(max_new_tokens=16)
    generate = pb.GenerateRequest(input=pb.Input(text="phoneme"), decoding=decoding)
    short = generate.SerializeToString()
    inputs = [pb.Input(token_ids=pb.TokenIds(ids=ids)) for ids in INPUTS]
    encode = pb.EncodeRequest(inputs=inputs, options=pb.EncodeOptions(pooling="POOLING_NONE"))
    return {
        "encode": encode.SerializeToString(),
        "tokenize": pb.TokenizeRequest(text=TEXT).SerializeToString(),
        "detokenize": pb.DetokenizeRequest(token_ids=IDS).SerializeToString(),
        "generate": short,
        "stream": short,
    }


class Clients:
    """Threads, each of which sends one call after another. `codes[kind][code]` counts the calls of
    each kind that ended with each status code."""

    def __init__(self, target: str, threads: int, timeout_s: float):
        self.codes = {kind: collections.Counter() for kind in METHODS}
        self._requests = requests()
        self._lock, self._end = threading.Lock(), threading.Event()
        self._target, self._timeout_s = target, timeout_s
        self._threads = [
            threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(threads)
        ]

    def _run(self, seed: int) -> None:
        chance = random.Random(seed)
        with grpc.insecure_channel(
            self._target,
            [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)],
        ) as channel:
            while not self._end.is_set():
                kind = chance.choice(list(METHODS))
                code = self._call(channel, kind)
                with self._lock:
                    self.codes[kind][code] += 1
                if code == "RESOURCE_EXHAUSTED":
                    time.sleep(0.05)

    def _call(self, channel: grpc.Channel, kind: str) -> str:
        method = f"/{SERVICE}/{METHODS[kind]}"
        try:
            if kind == "stream":
                collections.deque(
                    channel.unary_stream(method)(self._requests[kind], timeout=self._timeout_s),
                    maxlen=1,
                )
            else:
                channel.unary_unary(method)(self._requests[kind], timeout=self._timeout_s)
        except grpc.RpcError as error:
            return error.code().name
        return "OK"

    def run(self, seconds: float, alive) -> int:
        """Runs the clients for `seconds`, or until alive() is false. Returns the number of calls
        that never ended: one for each thread that does not return."""
        for thread in self._threads:
            thread.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end and alive():
            time.sleep(0.2)
        self._end.set()
        end = time.monotonic() + self._timeout_s + 60
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return sum(thread.is_alive() for thread in self._threads)


def cgroup_limit(folder: pathlib.Path, limit: int) -> str:
    """Sets the memory limit of the cgroup. Returns the name of the cgroup's file that counts OOM
    kills."""
    v2 = (folder / "memory.max").exists()
    (folder / ("memory.max" if v2 else "memory.limit_in_bytes")).write_text(str(limit))
    return "memory.events" if v2 else "memory.oom_control"


def oom_kills(file: pathlib.Path) -> int:
    return next(
        (
            int(line.split()[1])
            for line in file.read_text().splitlines()
            if line.startswith("oom_kill ")
        ),
        0,
    )


def run(args, verdict: Verdict, name: str, limit: int, field: str, **server_options) -> None:
    with Server(
        args.model,
        cache_memory=args.cache_mib,
        encoder_cache_bytes=256 * MIB,
        max_input_tokens=4096,
        **server_options,
    ) as server:
        plan = next(line for line in server.log().splitlines() if "memory plan" in line)
        clients = Clients(server.target, args.clients, args.timeout_s)
        unfinished = clients.run(args.minutes * 60, server.alive)
        alive = server.alive()
        peak = server.memory_bytes(field) if alive else 0
        serves = alive and server.answers(30)
        at_rest = alive and server.unaccounted()
        exit_code = server.stop()
    totals = sum(clients.codes.values(), collections.Counter())
    others = {
        code: count for code, count in totals.items() if code not in ("OK", "RESOURCE_EXHAUSTED")
    }
    verdict.figure(f"{name}_plan", plan)
    verdict.figure(f"{name}_codes", {kind: dict(codes) for kind, codes in clients.codes.items()})
    verdict.claim(f"{name}: the process lived", alive, alive)
    verdict.claim(f"{name}: calls lost but not refused", sum(others.values()), not others)
    verdict.claim(f"{name}: calls without an outcome", unfinished, unfinished == 0)
    verdict.claim(
        f"{name}: kinds of calls that were never answered",
        sum(codes["OK"] == 0 for codes in clients.codes.values()),
        all(codes["OK"] > 0 for codes in clients.codes.values()),
    )
    verdict.claim(
        f"{name}: {field} in MiB, at most {limit // MIB}", peak / MIB, alive and peak <= limit
    )
    verdict.claim(f"{name}: serves afterwards", serves, serves)
    verdict.claim(f"{name}: accepted requests unaccounted for", at_rest, alive and at_rest == 0)
    verdict.claim(f"{name}: exit code after SIGTERM", exit_code, exit_code == 0)


def main() -> int:
    args = arguments(
        __doc__, minutes=10.0, clients=96, limit_mib=2048, cache_mib=128, timeout_s=120.0, cgroup=""
    )
    verdict = Verdict("memory_limit", 18, "mixed load at the memory limit")
    limit = args.limit_mib * MIB
    run(args, verdict, "address space", limit, "VmPeak", address_space=limit)
    if args.cgroup:
        folder = pathlib.Path(args.cgroup)
        events = folder / cgroup_limit(folder, limit)
        before = oom_kills(events)
        run(args, verdict, "cgroup", limit, "VmHWM", cgroup=folder)
        verdict.claim(
            "cgroup: processes killed by the kernel",
            oom_kills(events) - before,
            oom_kills(events) == before,
        )
    else:
        print("memory_limit: SKIPPED the part under memory.max: no --cgroup given")
        verdict.figure("skipped", "the part under memory.max: no --cgroup given")
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
