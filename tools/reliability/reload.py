#!/usr/bin/env python3
"""Replaces a model 100 times while clients send calls and streams, with failing replacements and
SIGHUPs in between. No accepted request may be lost, every answer must come entirely from the model
version that it names, and the memory of the server must not grow.

Two checkpoints with different weights alternate, so that an answer shows which of them computed it.
Needs the Python packages of tests/requirements.txt: .venv/bin/python tools/reliability/reload.py
"""

import json
import pathlib
import signal
import statistics
import sys
import tempfile
import threading
import urllib.request

from serving import SOURCE, Verdict, arguments, eventually, free_port

sys.path.insert(0, str(SOURCE / "tests" / "python"))
import grpc  # noqa: E402

from admin_client import AdminServer, Checkpoint  # noqa: E402
from server_process import words  # noqa: E402

# An answer of the other checkpoint does not end by itself.
DECODING = {"max_new_tokens": 40}
TARGETS = ["f ow n iy m", "k w ih n t eh t"]


class Answers:
    """The expected answers of one checkpoint to every word: a text, an embedding and scores."""

    def __init__(self, server, some_words: list[str]):
        with server.client() as client:
            self.texts = {
                word: client.generate(word, DECODING).sequences[0].text for word in some_words
            }
            self.states = {word: vector(client.encode([word]).embeddings[0]) for word in some_words}
            self.scores = {
                word: [target.log_prob for target in client.score(word, TARGETS).scores]
                for word in some_words
            }


def vector(embedding) -> bytes:
    return embedding.values


class Clients:
    """Threads that send calls and streams until the with-block ends, and compare each answer with
    the expected answer of the version that it names."""

    def __init__(self, server, http_port: int, some_words: list[str], count: int):
        self._server, self._http_port, self._words = server, http_port, some_words
        self.checkpoint_of: dict[int, int] = {}  # version of the model -> checkpoint
        self.answers: list[Answers] = []  # of the checkpoints
        self.done: dict[str, int] = {}
        self.lost: list[str] = []
        self.wrong: list[str] = []
        self._lock, self._end = threading.Lock(), threading.Event()
        kinds = [self._generate, self._stream, self._encode_items, self._score, self._completions]
        self._threads = [
            threading.Thread(target=self._run, args=(kinds[i % len(kinds)],)) for i in range(count)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _run(self, kind):
        with self._server.client() as client:
            turn = 0
            while not self._end.is_set():
                word = self._words[turn % len(self._words)]
                turn += 1
                try:
                    wrong = kind(client, word)
                except (grpc.RpcError, OSError) as error:
                    with self._lock:
                        self.lost.append(f"{kind.__name__}: {error}")
                    continue
                with self._lock:
                    self.done[kind.__name__] = self.done.get(kind.__name__, 0) + 1
                    if wrong:
                        self.wrong.append(f"{kind.__name__} {word}: {wrong}")

    def _of(self, info) -> Answers:
        with self._lock:
            return self.answers[self.checkpoint_of[info.model_version]]

    def _generate(self, client, word):
        answer = client.generate(word, DECODING)
        expected = self._of(answer.info).texts[word]
        text = answer.sequences[0].text
        return None if text == expected else f"{text[:60]!r}, expected {expected[:60]!r}"

    def _stream(self, client, word):
        chunks, complete = [], None
        for event in client.stream(word, DECODING):
            if event.HasField("complete"):
                complete = event.complete
            else:
                chunks.append(event.chunk.text)
        expected = self._of(complete.info).texts[word]
        texts = ["".join(chunks), complete.sequences[0].text]
        return None if texts == [expected] * 2 else "the text of another version"

    def _encode_items(self, client, word):
        """Items of one stream may come from different versions, but each item from only one."""
        for answer in client.encode_stream([word] * 4):
            if vector(answer.embedding) != self._of(answer.info).states[word]:
                return "other states"
        return None

    def _score(self, client, word):
        answer = client.score(word, TARGETS)
        scores = [target.log_prob for target in answer.scores]
        expected = self._of(answer.info).scores[word]
        return None if scores == expected else f"{scores}, expected {expected}"

    def _completions(self, _, word):
        """Several prompts of one HTTP request are answered by one version."""
        prompts = self._words[:4]
        body = json.dumps({"prompt": prompts, "max_tokens": DECODING["max_new_tokens"]}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._http_port}/v1/completions",
            body,
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            choices = json.load(response)["choices"]
        texts = [choice["text"] for choice in sorted(choices, key=lambda c: c["index"])]
        expected = [[answers.texts[prompt] for prompt in prompts] for answers in self.answers]
        return None if texts in expected else "not the texts of one version"


class Replacements:
    """Replaces the model again and again, with failing replacements in between."""

    def __init__(self, server: AdminServer, checkpoint: Checkpoint, clients: Clients):
        self._server, self._checkpoint, self._clients = server, checkpoint, clients
        self.version, self.failed, self.drained = 1, 0, 0
        self.refused: list[str] = []

    def replace(self) -> None:
        which = self.version % 2
        self._checkpoint.use(which)
        self._clients.checkpoint_of[self.version + 1] = which
        response = self._server.admin("ReloadModel")
        self.version = response.model.version
        self.drained += response.drained_first

    def fail(self, turn: int) -> None:
        """Tries to replace the model by weights that are cut off, empty, absent or malformed."""
        weights = self._checkpoint.versions[0]
        kind = turn % 4
        if kind == 0:
            self._checkpoint.write(weights[: len(weights) // 2])
        elif kind == 1:
            self._checkpoint.write(b"")
        elif kind == 2:
            self._checkpoint.remove()
        else:
            self._checkpoint.write(b"\xff" * 8 + weights[8:])
        try:
            self._server.admin("ReloadModel")
            self.refused.append(f"a replacement of kind {kind} was not refused")
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.FAILED_PRECONDITION:
                self.refused.append(f"kind {kind}: {error}")
        self.failed += 1


def main() -> int:
    args = arguments(__doc__, reloads=100, clients=10, words=12, warm_reloads=10)
    verdict = Verdict("reload", None, f"{args.reloads} replacements under load")
    with tempfile.TemporaryDirectory() as folder:
        run(args, pathlib.Path(folder), verdict)
    return verdict.finish(args.out)


def run(args, folder: pathlib.Path, verdict: Verdict) -> None:
    checkpoint = Checkpoint(folder / "g2p")
    http_port = free_port()
    with AdminServer(
        folder,
        {"g2p": (checkpoint.folder, {})},
        http_api_listen=f"127.0.0.1:{http_port}",
        encoder_cache_bytes=16 << 20,
        cache_memory=64,
    ) as server:
        some_words = words(args.words)
        clients = Clients(server, http_port, some_words, args.clients)
        replacements = Replacements(server, checkpoint, clients)
        clients.checkpoint_of[1] = 0
        clients.answers.append(Answers(server, some_words))
        replacements.replace()
        clients.answers.append(Answers(server, some_words))
        differ = sum(
            clients.answers[0].texts[word] != clients.answers[1].texts[word] for word in some_words
        )
        resident = []
        with clients:
            for turn in range(args.reloads):
                if turn >= args.warm_reloads:
                    resident.append(server.resident_bytes() / 2**20)
                if turn % 5 == 2:
                    replacements.fail(turn // 5)
                if turn % 10 == 7:
                    server.process.send_signal(signal.SIGHUP)  # changes nothing
                replacements.replace()
        freed = eventually(lambda: server.listed().retired_versions == 0, 30)
        loads = server.metric("quintet_model_loads_total", outcome="loaded")
        code = server.stop()
    report(verdict, args, clients, replacements, resident, differ, freed, loads, code)


def report(verdict, args, clients, replacements, resident, differ, freed, loads, code) -> None:
    # A sample may include an old version that is not freed yet, so samples differ by the size of a
    # version, and in a short run the medians do, too. If versions were never freed, memory would
    # grow by several hundred MiB even in a short run.
    allowed = 50 if len(resident) >= 30 else 150
    third = max(len(resident) // 3, 1)
    before, after = statistics.median(resident[:third]), statistics.median(resident[-third:])
    grown = after - before
    verdict.figure("answers", clients.done)
    verdict.figure("failed_replacements", replacements.failed)
    verdict.figure("replacements_after_a_drain", replacements.drained)
    verdict.figure("resident_mib", {"first": before, "last": after, "peak": max(resident)})
    verdict.figure("lost", clients.lost[:10])
    verdict.figure("wrong", clients.wrong[:10])
    for text in (clients.lost + clients.wrong + replacements.refused)[:10]:
        print(text)
    verdict.claim("words whose answers tell the version", differ, differ > 0)
    verdict.claim("kinds of calls", len(clients.done), len(clients.done) == 5)
    verdict.claim("requests that failed", len(clients.lost), not clients.lost)
    verdict.claim("answers that mix versions", len(clients.wrong), not clients.wrong)
    verdict.claim(
        "failing replacements that did not fail as they should",
        len(replacements.refused),
        not replacements.refused,
    )
    verdict.claim("version at the end", replacements.version, replacements.version == loads)
    verdict.claim(
        "replacements", replacements.version - 2, replacements.version - 2 == args.reloads
    )
    verdict.claim("seconds until old versions are freed <= 30", freed, freed is not None)
    verdict.claim(
        f"MiB gained from the first to the last third <= {allowed}", grown, grown <= allowed
    )
    verdict.claim("exit code", code, code == 0)


if __name__ == "__main__":
    raise SystemExit(main())
