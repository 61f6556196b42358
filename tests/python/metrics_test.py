"""Tests /metrics with the Prometheus parser.

The counters are consistent, and client input never creates a time series.
"""

import random
import string
import subprocess
import threading

import grpc

from quintet.wire import pb
from server_process import G2P, Server, eventually, words

Code = grpc.StatusCode


def series(server) -> set:
    return {(sample.name, tuple(sorted(sample.labels.items()))) for sample in server.samples()}


def test_counters_add_up_after_chaos():
    """Makes concurrent calls that succeed, fail, are rejected, cancelled or exceed a deadline.

    Afterwards as many requests are finished as were accepted, and none is running or waiting. Row
    35 of tests/README.md.
    """
    random_source = random.Random(1)
    with (
        Server(G2P, max_queue=8, max_running=16, metrics_compat="vllm") as server,
        server.client() as client,
    ):
        outcomes: dict[str, int] = {}
        lock = threading.Lock()
        generated_tokens = 0

        def count(name: str) -> None:
            with lock:
                outcomes[name] = outcomes.get(name, 0) + 1

        def one(word: str, kind: int) -> None:
            nonlocal generated_tokens
            try:
                if kind == 0:
                    call = client.stream(word, {"ignore_eos": True, "max_new_tokens": 2000})
                    next(call)
                    call.cancel()
                    return count("cancelled")
                if kind == 1:
                    client.stub.Generate(
                        client.generate_request(word, {"ignore_eos": True, "max_new_tokens": 2000}),
                        timeout=0.05,
                    )
                elif kind == 2:
                    client.generate([128])
                elif kind == 3:
                    client.encode([word, word + "s"])
                    return count("embedded")
                elif kind == 4:
                    client.score(word, ["W AE1", "B"])
                    return count("scored")
                answer = client.generate(word, {"num_beams": 1 + kind % 3})
                with lock:
                    generated_tokens += answer.info.usage.output_tokens
                count("generated")
            except grpc.RpcError as error:
                count(error.code().name)

        def client_thread(thread_words: list[str]) -> None:
            for word in thread_words:
                one(word, random_source.randrange(8))

        many = words(1200)
        threads = [threading.Thread(target=client_thread, args=(many[i::24],)) for i in range(24)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            server.samples()  # scrape during the load
            threads[0].join(0.1)
            threads = [thread for thread in threads if thread.is_alive()] or threads[:1]
        assert outcomes.keys() >= {
            "generated",
            "embedded",
            "scored",
            "cancelled",
            "INVALID_ARGUMENT",
            "RESOURCE_EXHAUSTED",
            "DEADLINE_EXCEEDED",
        }

        def value(name: str, **labels: str) -> float:
            return server.metric(f"quintet_{name}", **labels)

        assert eventually(lambda: value("requests_running") == value("requests_waiting") == 0)
        assert eventually(
            lambda: value("requests_accepted_total") == value("requests_finished_total")
        )
        assert value("kv_cache_usage_ratio") == value("queue_tokens") == 0
        # If a rejection arrives after the client's deadline, the server counts a rejection, but the
        # client sees DEADLINE_EXCEEDED.
        refused = value("requests_rejected_total", reason="QUEUE_FULL")
        assert 0 <= refused - outcomes["RESOURCE_EXHAUSTED"] <= outcomes["DEADLINE_EXCEEDED"]
        assert (
            value("requests_rejected_total", reason="INVALID_FIELD") == outcomes["INVALID_ARGUMENT"]
        )
        finished = {
            reason: value("requests_finished_total", reason=reason)
            for reason in ("eos", "length", "stop", "done", "error")
        }
        assert finished["eos"] + finished["length"] >= outcomes["generated"]
        # Each of the two inputs of an Encode call counts as one request.
        assert finished["done"] >= 2 * outcomes["embedded"] + outcomes["scored"]
        assert finished["error"] == finished["stop"] == 0
        assert value("generation_tokens_total") >= generated_tokens
        answered = finished["eos"] + finished["length"] + finished["done"]
        assert (
            value("e2e_request_latency_seconds_count")
            == value("request_prompt_tokens_count")
            == answered
        )
        # Cancelled and expired requests count in prompt_tokens_total, but not in the histogram
        # request_prompt_tokens.
        assert 0 < value("request_prompt_tokens_sum") <= value("prompt_tokens_total")
        assert (
            value("request_generation_tokens_count")
            == value("time_to_first_token_seconds_count")
            == finished["eos"] + finished["length"]
        )
        assert 0 < value("request_generation_tokens_sum") <= value("generation_tokens_total")
        assert value("encoder_cache_hits_total") <= value("encoder_cache_queries_total")

        # The aliases with vLLM's names have the values of the native metrics.
        assert (
            server.metric("vllm:num_requests_running")
            == server.metric("vllm:num_requests_waiting")
            == 0
        )
        assert server.metric("vllm:generation_tokens_total") == value("generation_tokens_total")
        assert server.metric("vllm:prompt_tokens_total") == value("prompt_tokens_total")
        assert (
            server.metric("vllm:request_success_total", finished_reason="stop") == finished["eos"]
        )
        assert (
            server.metric("vllm:request_success_total", finished_reason="length")
            == finished["length"]
        )
        assert server.metric("vllm:e2e_request_latency_seconds_count") == answered
        check_text(server)


def check_text(server) -> None:
    text = server.get("/metrics")[1]
    samples = server.samples()
    assert len(samples) == len({(s.name, tuple(sorted(s.labels.items()))) for s in samples})
    for sample in samples:
        of_process = sample.name.startswith("process_")
        assert bool(sample.labels.get("model_name")) != of_process, sample
        assert (sample.labels.get("engine") == "0") != of_process, sample
    for name in {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}:
        assert f"# HELP {name} " in text
    buckets: dict[tuple, list] = {}
    for sample in samples:
        if sample.name.endswith("_bucket"):
            buckets.setdefault((sample.name, sample.labels["model_name"]), []).append(
                (float(sample.labels["le"]), sample.value)
            )
    for name, values in buckets.items():
        assert values == sorted(values), name
        assert [count for _, count in values] == sorted(count for _, count in values), name


def test_promtool_finds_nothing_wrong(server, client):
    client.generate("wagner")
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=server.get("/metrics")[1].encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_model_names_make_no_series(server, client):
    """10,000 unknown model names create no time series (row 34 of tests/README.md)."""
    client.generate("wagner")
    before = series(server)
    random_source = random.Random(2)
    alphabet = string.printable + "\u00e9\u65e5"
    calls = []
    for i in range(10_000):
        name = "".join(random_source.choices(alphabet, k=random_source.randrange(1, 40)))
        calls.append(
            client.stub.GetModelInfo.future(pb.GetModelInfoRequest(model=name), timeout=60)
            if i % 2
            else client.stub.Generate.future(
                pb.GenerateRequest(call=pb.CallOptions(model=name), input=pb.Input(text="a")),
                timeout=60,
            )
        )
    assert {call.code() for call in calls} == {Code.NOT_FOUND}
    assert series(server) == before


def test_nothing_else_is_served_over_http(server):
    assert server.get("/")[0] == 404
    assert server.get("/etc/passwd")[0] == 404
    assert server.get("/../../etc/passwd")[0] in (400, 404)
