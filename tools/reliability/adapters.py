#!/usr/bin/env python3
"""LoRA adapters under load, in two parts.

1. Rounds of streams with 1,000 adapters in 64 slots, chosen by Zipf's law, alternate with rounds in
   which all streams use one adapter. With many adapters the 99th percentile of the time to the
   first token must be at most twice as long as with one.
2. The model's four adapters are changed 1,000 times while clients stream with and without
   adapters. Before every tenth change, a change to a broken adapter fails. The model must not be
   loaded again, and no accepted request may be lost. Every answer must come from an adapter that
   had the request's adapter name while the request ran. The memory of the server must not grow.

--adapters 0 leaves out the first part.

Needs the Python packages of tests/requirements.txt: .venv/bin/python tools/reliability/adapters.py
"""

import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time

from serving import G2P, SOURCE, Verdict, arguments, eventually

sys.path.insert(0, str(SOURCE / "tests" / "python"))
import grpc  # noqa: E402

from adapter_files import make_adapter  # noqa: E402
from admin_client import POOL, AdminServer  # noqa: E402
from server_process import words  # noqa: E402

# An answer with random adapters does not end by itself.
DECODING = {"max_new_tokens": 16}


class Answer:
    """A stream's text, and seconds to its first message."""

    def __init__(self, client, word: str, adapter: str | None):
        request = client.generate_request(word, DECODING)
        if adapter is not None:
            request.call.adapter = adapter
        begin = time.monotonic()
        self.first_s, self.text = None, ""
        for event in client.stub.GenerateStream(request, timeout=60):
            if self.first_s is None:
                self.first_s = time.monotonic() - begin
            if event.HasField("complete"):
                self.text = event.complete.sequences[0].text


def in_threads(count: int, run) -> None:
    """Calls run(0) to run(count - 1), each in a thread of its own."""
    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# ---- Part 1: many adapters ----

SLOTS = 64


def zipf(names: list[str], count: int, seed: int) -> list[str]:
    weights = [1 / (rank + 1) for rank in range(len(names))]
    return random.Random(seed).choices(names, weights, k=count)


def measure_first_tokens(server, chosen: list[str], clients: int) -> list[float]:
    """Runs one stream for each adapter name in `chosen`, with `clients` streams at a time. Returns
    the seconds to the first token of each stream."""
    seconds: list[float] = []
    some_words = words(200)

    def run(index):
        with server.client() as client:
            for turn in range(index, len(chosen), clients):
                answer = Answer(client, some_words[turn % len(some_words)], chosen[turn])
                seconds.append(answer.first_s)

    in_threads(clients, run)
    return seconds


def try_many(args, folder: pathlib.Path, verdict: Verdict) -> None:
    paths = {f"a{i}": str(make_adapter(folder / f"a{i}", i)) for i in range(args.adapters)}
    names = list(paths)
    settings = {"adapters": paths, "adapter-slots": SLOTS}
    with AdminServer(folder, {"g2p": (str(G2P), settings)}, cache_memory=64) as server:
        seconds: dict[str, list[float]] = {"one": [], "zipf": []}
        with server.client() as client:  # warm up
            for name in names[:50]:
                Answer(client, "phoneme", name)
        used = set()
        for turn in range(args.rounds):
            many = zipf(names, args.requests, turn)
            used |= set(many)
            for kind, chosen in (("one", names[:1] * args.requests), ("zipf", many)):
                seconds[kind] += measure_first_tokens(server, chosen, args.clients)
        resident = server.resident_bytes() / 2**20
    percentiles = {
        kind: {
            "p50_ms": 1e3 * statistics.median(values),
            "p99_ms": 1e3 * statistics.quantiles(values, n=100)[98],
        }
        for kind, values in seconds.items()
    }
    verdict.figure("first_token", percentiles)
    verdict.figure("resident_mib_with_all_adapters", resident)
    ratio = percentiles["zipf"]["p99_ms"] / percentiles["one"]["p99_ms"]
    verdict.claim("adapters loaded", len(names), len(names) == args.adapters)
    verdict.claim("adapters that streams chose", len(used), len(used) > len(names) // 10)
    verdict.claim("p99 of the first token over that with one adapter <= 2", ratio, ratio <= 2)


# ---- Part 2: changing adapters ----

FILES, NAMES = 8, 4
ACTIONS = POOL.FindEnumTypeByName("quintet.admin.v1.ModelChange.Action")
ADAPTERS_CHANGED = ACTIONS.values_by_name["ACTION_ADAPTERS_CHANGED"].number


class Changes:
    """Changes the server's configuration: in each turn the names x0 to x3 get other files."""

    def __init__(self, server: AdminServer, paths: list[str], broken: str):
        self._server, self._paths, self._broken = server, paths, broken
        self.begun, self.applied = 0, 0  # turns
        self.refused: list[str] = []

    @staticmethod
    def file_of(name: int, turn: int) -> int:
        return (name + turn * NAMES // 2) % FILES

    def settings(self, turn: int, broken: bool = False) -> dict:
        adapters = {f"x{i}": self._paths[self.file_of(i, turn)] for i in range(NAMES)}
        if broken:
            adapters["x1"] = self._broken
        return {"g2p": (str(G2P), {"adapters": adapters})}

    def fail(self, turn: int) -> None:
        self._server.configure(self.settings(turn, broken=True))
        try:
            self._server.admin("ReloadConfiguration")
        except grpc.RpcError:
            pass
        if not eventually(lambda: bool(self._server.listed().failure), 60):
            self.refused.append(f"change {turn} with a broken adapter did not fail")

    def apply(self, turn: int) -> None:
        self.begun = turn
        self._server.configure(self.settings(turn))
        (change,) = self._server.admin("ReloadConfiguration").changes
        if change.action != ADAPTERS_CHANGED or change.failure or change.version != 1:
            self.refused.append(f"change {turn}: {change}")
        self.applied = turn


def expected_texts(folder: pathlib.Path, paths: list[str], some_words: list[str]) -> dict:
    """{(file, word): text}; file None: without an adapter."""
    adapters = {f"f{i}": path for i, path in enumerate(paths)}
    with AdminServer(folder, {"g2p": (str(G2P), {"adapters": adapters})}) as server:
        with server.client() as client:
            return {
                (file, word): Answer(client, word, None if file is None else f"f{file}").text
                for file in [None, *range(len(paths))]
                for word in some_words
            }


def try_changes(args, folder: pathlib.Path, verdict: Verdict) -> None:
    paths = [str(make_adapter(folder / f"f{i}", 5000 + i)) for i in range(FILES)]
    broken = make_adapter(folder / "broken", 1)
    weights = broken / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-40])
    some_words = words(6)
    (folder / "expected").mkdir()
    texts = expected_texts(folder / "expected", paths, some_words)
    lost, wrong, done, resident = [], [], [0], []
    end = threading.Event()
    first = {"g2p": (str(G2P), {"adapters": {f"x{i}": paths[i] for i in range(NAMES)}})}
    # A small encoder cache fills up early. If it grew during the measurement, that growth could not
    # be told from a leak.
    flags = {"cache_memory": 64, "encoder_cache_bytes": 4 << 20}
    with AdminServer(folder, first, **flags) as server:
        changes = Changes(server, paths, str(broken))

        def run(index):
            with server.client() as client:
                turn = index
                while not end.is_set():
                    turn += 1
                    word, name = some_words[turn % len(some_words)], turn % (NAMES + 1)
                    adapter = None if name == NAMES else f"x{name}"
                    applied = changes.applied
                    try:
                        answer = Answer(client, word, adapter)
                    except grpc.RpcError as error:
                        lost.append(str(error))
                        continue
                    done[0] += 1
                    files = {None}
                    if adapter is not None:
                        turns = range(applied, changes.begun + 1)
                        files = {changes.file_of(name, turn) for turn in turns}
                    if answer.text not in {texts[file, word] for file in files}:
                        wrong.append(f"{adapter} {word}")

        threads = [threading.Thread(target=run, args=(i,)) for i in range(args.clients)]
        for thread in threads:
            thread.start()
        for turn in range(1, args.changes + 1):
            if turn % 10 == 0:
                changes.fail(turn)
            changes.apply(turn)
            if turn > args.changes // 10:
                resident.append(server.resident_bytes() / 2**20)
        end.set()
        for thread in threads:
            thread.join()
        code = server.stop()
    third = max(len(resident) // 3, 1)
    grown = statistics.median(resident[-third:]) - statistics.median(resident[:third])
    for text in (lost + wrong + changes.refused)[:10]:
        print(text)
    different = sum(texts[file, w] != texts[None, w] for file in range(FILES) for w in some_words)
    verdict.figure("answers", done[0])
    verdict.figure("adapters_loaded", NAMES * (args.changes + 1))
    verdict.figure("resident_mib", {"first": resident[0], "last": resident[-1]})
    verdict.claim("answers that adapters change", different, different > 0)
    verdict.claim("changes", changes.applied, changes.applied == args.changes)
    verdict.claim("requests that failed", len(lost), not lost)
    verdict.claim("answers of another adapter", len(wrong), not wrong)
    verdict.claim("changes with another outcome", len(changes.refused), not changes.refused)
    verdict.claim("MiB gained from the first to the last third <= 50", grown, grown <= 50)
    verdict.claim("exit code", code, code == 0)


def main() -> int:
    args = arguments(__doc__, adapters=1000, requests=400, rounds=5, clients=8, changes=1000)
    what = f"{args.adapters} adapters, and {args.changes} changes of adapters under load"
    verdict = Verdict("adapters", None, what)
    with tempfile.TemporaryDirectory() as many, tempfile.TemporaryDirectory() as changing:
        if args.adapters > 0:
            try_many(args, pathlib.Path(many), verdict)
        try_changes(args, pathlib.Path(changing), verdict)
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
