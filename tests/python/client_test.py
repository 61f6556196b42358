"""Tests tools/client.py: its command line, its timeouts and its retries."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from server_process import (
    G2P,
    SOURCE,
    Server,
    eventually,
    free_port,
    run_python,
    run_quintet,
    words,
)

CLIENT = [sys.executable, str(SOURCE / "tools" / "client.py")]
ENDLESS = ["--ignore-eos", "--max-new-tokens", "4000"]


def run(
    command: str, *arguments: str, server=None, stdin: str = "", expect: int = 0, **environment: str
) -> subprocess.CompletedProcess:
    target = ["--target", server.target] if server else []
    done = subprocess.run(
        [*CLIENT, command, *target, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == expect, done.stderr
    return done


def test_generate_prints_what_the_command_line_prints(server):
    lines = "".join(word + "\n" for word in words(40))
    expected = run_quintet(
        "generate", "--model", str(G2P), "--num-beams", "2", stdin=lines
    ).decode()
    assert (
        run("generate", "--num-beams", "2", "--concurrency", "8", server=server, stdin=lines).stdout
        == expected
    )


def test_output_that_cannot_be_written(server):
    with open("/dev/full", "wb") as full:
        command = [*CLIENT, "generate", "--target", server.target, "wagner"]
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, timeout=120, check=False
        )
    assert done.returncode == 1
    assert (
        done.stderr.decode()
        == "client: writing standard output: [Errno 28] No space left on device\n"
    )


def test_arguments_json_and_several_sequences(server):
    assert (
        run("generate", "wagner", "acclaimed", server=server).stdout
        == "W AE1 G N ER0\nAH0 K L EY1 M D\n"
    )
    done = run(
        "generate",
        "wagner",
        "--num-beams",
        "3",
        "--num-return-sequences",
        "2",
        "--return-scores",
        "--output",
        "json",
        "--request-id",
        "r-1",
        server=server,
    )
    answer = json.loads(done.stdout)
    assert [sequence["index"] for sequence in answer["sequences"]] == [0, 1] and answer["info"][
        "request_id"
    ] == "r-1"
    assert answer["sequences"][0]["score"] > answer["sequences"][1]["score"]
    assert (
        run(
            "generate", "wagner", "--num-beams", "3", "--num-return-sequences", "2", server=server
        ).stdout.count("\t")
        == 1
    )


def test_every_kind_of_decoding_flag(server):
    run(
        "generate",
        "wagner",
        "--do-sample",
        "--seed",
        "5",
        "--temperature",
        "0.5",
        "--suppress-tokens",
        "5,6",
        "--bad-words-ids",
        "7,8;9",
        "--stop",
        "AH0",
        "--stop",
        "N",
        "--no-include-stop",
        "--eos-token-ids",
        "1",
        "--decoder-prefix",
        "W",
        "--no-skip-special-tokens",
        server=server,
    )
    run(
        "generate",
        "wagner",
        "--num-beams",
        "4",
        "--early-stopping",
        "first",
        "--patience",
        "2",
        server=server,
    )


@pytest.mark.parametrize(
    "flags",
    [[], ["--num-beams", "4"], ["--do-sample", "--seed", "2", "--num-return-sequences", "3"]],
)
def test_stream_ends_in_the_same_line(server, flags):
    expected = run("generate", "extraordinarily", "wagner", *flags, server=server).stdout
    assert run("stream", "extraordinarily", "wagner", *flags, server=server).stdout == expected


def test_stream_prints_as_it_comes(server):
    process = subprocess.Popen(
        [*CLIENT, "stream", "--target", server.target, "a", *ENDLESS], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout.read(20)  # long before all 4,000 tokens are generated
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.communicate()
    assert eventually(lambda: server.metric("quintet_requests_running") == 0)


def test_stream_as_json(server):
    events = [
        json.loads(line)
        for line in run("stream", "wagner", "--output", "json", server=server).stdout.splitlines()
    ]
    assert (
        "".join(event["chunk"]["text"] for event in events[:-1])
        == events[-1]["complete"]["sequences"][0]["text"]
        == "W AE1 G N ER0"
    )


def test_the_other_commands(server, tiny_models):
    values = [
        float(number)
        for number in run("encode", "wagner", "--normalize", server=server).stdout.split()
    ]
    assert len(values) == 256 and abs(sum(value * value for value in values) - 1) < 1e-4
    embedding = json.loads(
        run("encode", "wagner", "--pooling", "none", "--output", "json", server=server).stdout
    )
    assert len(embedding["embeddings"]) == 8 and len(embedding["embeddings"][0]) == 256
    good, bad = map(
        float,
        run("score", "wagner\tW AE1 G N ER0\tB AE1 G N ER0", server=server).stdout.split("\t"),
    )
    assert good > bad
    ids = run("tokenize", "wagner", server=server).stdout
    assert len(ids.split()) == 8
    assert run("detokenize", server=server, stdin=ids).stdout == "wagner\n"
    assert "max_new_tokens\t4096" in run("info", server=server).stdout.replace("limits.", "")
    assert json.loads(run("info", "--output", "json", server=server).stdout)["vocab"] == 128
    assert (
        run("health", server=server).stdout
        == run("health", "--service", "quintet.v1.Inference", server=server).stdout
        == "SERVING\n"
    )
    assert run("models", server=server).stdout == "g2p\tready\tcpu\tf32\tgenerate encode score\n"
    with Server(tiny_models["t5-seqcls"], tiny_models["t5-qa"]) as tiny:
        listed = run("models", "--output", "json", server=tiny).stdout.splitlines()
        assert [json.loads(line)["model"] for line in listed] == ["t5-seqcls", "t5-qa"]
        label, probability = run(
            "classify", "wagner", "--model", "t5-seqcls", server=tiny
        ).stdout.split("\t")
        assert label.startswith("LABEL_") and 0 < float(probability) < 1
        answer = run(
            "classify", "who\tthe quick brown fox", "--model", "t5-qa", server=tiny
        ).stdout.strip()
        assert answer and answer in "the quick brown fox"


def test_every_pooling(server):
    rows = {
        pooling: run("encode", "wagner", "--pooling", pooling, server=server).stdout
        for pooling in ("mean", "first", "last", "max", "mean_sqrt_len", "weighted_mean")
    }
    assert len(set(rows.values())) == len(rows)


@pytest.mark.parametrize(
    "command, flags, message",
    [
        ("generate", ["--logprobs"], "--logprobs: text output does not show it; use --output json"),
        ("generate", ["--top-logprobs", "2"], "--top-logprobs: text output does not"),
        ("stream", ["--num-beams", "2", "--return-scores"], "--return-scores: text output does"),
        ("score", ["--top-logprobs", "2"], "--top-logprobs: text output does not show it"),
        ("generate", ["--concurrency", "0"], "argument --concurrency: 0 is not in [1, 1024]"),
        ("encode", ["--concurrency", "-3"], "argument --concurrency: -3 is not in [1, 1024]"),
        ("encode", ["--pooling", "median"], "invalid choice: 'median'"),
    ],
)
def test_flags_that_are_refused(command, flags, message):
    done = run(command, "wagner", *flags, expect=2)
    assert message in done.stderr and "Traceback" not in done.stderr and done.stdout == ""


def test_a_failed_line_keeps_its_place(server):
    done = run("generate", "wagner", "a" * 5000, "wagner", server=server, expect=4)
    assert done.stdout == "W AE1 G N ER0\n\nW AE1 G N ER0\n"
    assert "INVALID_ARGUMENT INVALID_FIELD: input: must be at most 4096 tokens" in done.stderr
    lines = run(
        "generate", "a" * 5000, "wagner", "--output", "json", server=server, expect=4
    ).stdout.splitlines()
    assert json.loads(lines[0])["error"]["reason"] == "INVALID_FIELD" and "sequences" in json.loads(
        lines[1]
    )


def test_an_input_that_no_message_can_hold_costs_only_itself(server):
    done = subprocess.run(
        [*CLIENT, "generate", "--target", server.target],
        input=b"\xc3(\nwagner\n",
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (4, b"\nW AE1 G N ER0\n")
    assert b"INVALID_ARGUMENT" in done.stderr and b"Traceback" not in done.stderr
    done = run("detokenize", "x", "5", server=server, expect=4)
    assert done.stdout.startswith("\n") and done.stdout.count("\n") == 2
    events = run("stream", "a" * 5000, "--output", "json", server=server, expect=4).stdout
    assert json.loads(events)["error"]["reason"] == "INVALID_FIELD"


def test_exit_codes(server):
    run("generate", "a", "--num-beams", "-1", server=server, expect=2)
    run("generate", "a", "--no-such-flag", server=server, expect=2)
    run("generate", "a", "--api-key-file", "/no/such/file", server=server, expect=2)
    told = run("generate", "a", *ENDLESS, "--timeout", "0.2", server=server, expect=4).stderr
    assert "DEADLINE_EXCEEDED" in told and "the timeout was 0.2 s" in told
    assert (
        "NOT_FOUND MODEL_NOT_FOUND"
        in run("info", "--model", "other", server=server, expect=4).stderr
    )
    assert (
        "UNAVAILABLE"
        in run("health", "--target", f"127.0.0.1:{free_port()}", "--attempts", "1", expect=4).stderr
    )


def test_the_key_from_a_file_or_the_environment(tmp_path):
    digests, key = tmp_path / "digests", tmp_path / "key"
    digests.write_text(hashlib.sha256(b"sk-1").hexdigest() + "\n")
    digests.chmod(0o600)
    key.write_text("sk-1\n")
    with Server(G2P, api_key_file=digests) as server:
        assert "UNAUTHENTICATED AUTH" in run("generate", "wagner", server=server, expect=4).stderr
        run("generate", "wagner", "--api-key-file", str(key), server=server)
        run("generate", "wagner", server=server, QUINTET_API_KEY="sk-1")
        assert (
            "PERMISSION_DENIED AUTH"
            in run("generate", "wagner", server=server, expect=4, QUINTET_API_KEY="sk-2").stderr
        )


def test_refused_calls_are_tried_again_when_the_server_says():
    """The server requests a delay of 150 to 250 ms before each retry.

    By default gRPC would make the first retry after about 100 ms.
    """
    with (
        Server(G2P, max_running=1, max_queue=1) as server,
        server.client() as other,
        server.client(attempts=5) as client,
    ):
        decoding = {"ignore_eos": True, "max_new_tokens": 4000}
        running = other.stream("a", decoding)
        next(running)
        waiting = other.stream("a", decoding)
        assert eventually(lambda: server.metric("quintet_requests_waiting") == 1)

        def refused() -> float:
            return server.metric("quintet_requests_rejected_total", reason="QUEUE_FULL")

        def make_room() -> None:
            eventually(lambda: refused() >= 1)
            waiting.cancel()
            running.cancel()

        thread = threading.Thread(target=make_room)
        thread.start()
        began = time.monotonic()
        assert client.generate("wagner").sequences[0].text == "W AE1 G N ER0"
        took_s = time.monotonic() - began
        thread.join()
        assert 1 <= refused() <= 4
        assert took_s >= 0.15 * refused()


def test_grpcurl_commands_of_the_readme(server, client):
    """Calls the method of each grpcurl command in the README.

    grpcurl is not in Debian. Like grpcurl, the test parses the JSON with the message types from
    server reflection.
    """
    readme = (SOURCE / "tools" / "README.md").read_text(encoding="utf-8")
    commands = re.findall(
        r"^    grpcurl -plaintext (?:-d '(.*)' )?127\.0\.0\.1:50051 ([\w.]+)/(\w+)$",
        readme,
        re.MULTILINE,
    )
    assert len(commands) >= 6
    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(client.channel))
    for body, service, name in commands:
        method = pool.FindServiceByName(service).FindMethodByName(name)
        request = json_format.Parse(
            body or "{}", message_factory.GetMessageClass(method.input_type)()
        )
        open_call = (
            client.channel.unary_stream if method.server_streaming else client.channel.unary_unary
        )
        call = open_call(
            f"/{service}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=bytes,
        )
        answer = call(request, timeout=30)
        assert b"".join(answer) if method.server_streaming else answer


@pytest.mark.skipif(
    shutil.which("grpcurl") is None,
    reason="grpcurl is not in Debian; with it on the path this runs it",
)
def test_grpcurl_itself(server):
    readme = (SOURCE / "tools" / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^    (grpcurl .*127\.0\.0\.1:50051.*)$", readme, re.MULTILINE)
    assert len(commands) >= 7
    for command in commands:
        command = command.replace("127.0.0.1:50051", server.target)
        done = subprocess.run(
            command, shell=True, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0 and done.stdout, done.stderr


def test_python_of_the_readme(server):
    readme = (SOURCE / "tools" / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"    # PYTHONPATH=build/python .*?\n(?=\S)", readme, re.DOTALL)
    assert len(blocks) == 2  # a model in the process, a client
    code = textwrap.dedent(blocks[1]).replace("127.0.0.1:50051", server.target)
    done = run_python(code, timeout_s=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("F OW1 N IY0 M") == 2
    assert done.stdout.endswith("INVALID_ARGUMENT INVALID_FIELD num_beams: 99 is not in [1, 32]\n")
