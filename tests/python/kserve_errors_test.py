"""Tests requests of KServe's gRPC protocol that fail, each with its code and field.

Also API keys, TLS and deadlines.
"""

import hashlib
import json
import subprocess
import time

import grpc
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from kserve_requests import Stream, raw_strings, request, stub_of, text_request, texts
from quintet.rpc import Failure
from server_process import G2P, Server, eventually, failure_of

Code = grpc.StatusCode
ENDLESS = {"ignore_eos": True, "max_new_tokens": 4000}
ONE = ("text_input", "BYTES", [1, 1], raw_strings(b"a"))
IDS = ("input_ids", "INT32", [1, 2], b"\5\0\0\0\6\0\0\0")
TYPED = ("text_input", "BYTES", [1, 1], {"bytes_contents": [b"a"]})


def ids(values: list[int], shape: list[int], name: str = "input_ids") -> tuple:
    return (name, "INT64", shape, b"".join(v.to_bytes(8, "little", signed=True) for v in values))


def with_parameters(**parameters):
    return request(ONE, parameters=parameters)


def with_options(options) -> service_pb2.ModelInferRequest:
    text = options if isinstance(options, bytes) else json.dumps(options).encode()
    return request(ONE, ("sampling_parameters", "BYTES", [1], raw_strings(text)))


def with_raw(*contents: bytes) -> service_pb2.ModelInferRequest:
    made = request(ONE)
    made.ClearField("raw_input_contents")
    made.raw_input_contents.extend(contents)
    return made


def with_both_contents() -> service_pb2.ModelInferRequest:
    made = request(ONE)
    made.inputs[0].contents.bytes_contents.append(b"a")
    return made


def with_input_parameter() -> service_pb2.ModelInferRequest:
    made = request(ONE)
    made.inputs[0].parameters["shared_memory_region"].string_param = "x"
    return made


def with_output_parameter() -> service_pb2.ModelInferRequest:
    made = request(ONE, wanted=["text_output"])
    made.outputs[0].parameters["classification"].int64_param = 3
    return made


# Request, field of the error, and a part of its text.
INVALID = [
    # Inputs.
    (request(), "inputs", "1 to 16 tensors, got 0"),
    (request(*[ONE] * 17), "inputs", "1 to 16 tensors, got 17"),
    (request(("text", "BYTES", [1], raw_strings(b"a"))), "inputs[0].name", "must be one of"),
    (request(("", "BYTES", [1], raw_strings(b"a"))), "inputs[0].name", "must be one of"),
    (request(ONE, ONE), "inputs[1].name", "given twice"),
    (request(ONE, IDS), "inputs", "either text_input or input_ids"),
    (request(("stream", "BOOL", [1], b"\0")), "inputs", "either text_input or input_ids"),
    (request(("text_input", "BYTES", [65, 1], raw_strings(*[b"a"] * 65))), "text_input", "1 to 64"),
    (request(ids([5] * 65, [65, 1])), "input_ids", "1 to 64"),
    (with_input_parameter(), "inputs[0].parameters", "shared memory"),
    # Datatypes and shapes.
    (request(("text_input", "INT32", [1], b"\0" * 4)), "inputs[0].datatype", "must be BYTES"),
    (request(("text_input", "bytes", [1], raw_strings(b"a"))), "inputs[0].datatype", "BYTES"),
    (request(("input_ids", "FP32", [1, 1], b"\0" * 4)), "inputs[0].datatype", "INT32 or INT64"),
    (request(("input_ids", "UINT32", [1, 1], b"\0" * 4)), "inputs[0].datatype", "INT32 or INT64"),
    (request(("text_input", "BYTES", [], b"")), "inputs[0].shape", "1 to 3 dimensions, got 0"),
    (request(("text_input", "BYTES", [1] * 4, b"")), "inputs[0].shape", "1 to 3 dimensions"),
    (request(("text_input", "BYTES", [1, 0], b"")), "inputs[0].shape[1]", "positive, got 0"),
    (request(("text_input", "BYTES", [-1, 1], b"")), "inputs[0].shape[0]", "positive, got -1"),
    (request(("text_input", "BYTES", [1 << 40] * 3, b"")), "inputs[0].shape", "elements"),
    (request(("text_input", "BYTES", [1 << 32], b"")), "inputs[0].shape", "elements"),
    (request(("text_input", "BYTES", [(1 << 63) - 1], b"")), "inputs[0].shape", "elements"),
    (
        request(("text_input", "BYTES", [1, 2], raw_strings(b"a", b"b"))),
        "text_input",
        "shape [-1, 1], got [1, 2]",
    ),
    (request(ids([5] * 4, [1, 2, 2])), "input_ids", "shape [-1, -1]"),
    (request(IDS, ids([1] * 3, [1, 3], "attention_mask")), "attention_mask", "shape [1, 2]"),
    (request(IDS, ids([1, 1], [2, 1], "input_lengths")), "input_lengths", "shape [1, 1]"),
    # Lengths in bytes.
    (with_raw(b""), "raw_input_contents[0]", "ends after 0"),
    (with_raw(b"\1\0\0"), "raw_input_contents[0]", "ends after 0"),
    (with_raw(b"\2\0\0\0a"), "raw_input_contents[0]", "length of 2 bytes, but only 1"),
    (with_raw(b"\xff\xff\xff\xffa"), "raw_input_contents[0]", "length of 4294967295"),
    (with_raw(raw_strings(b"a", b"b")), "raw_input_contents[0]", "5 bytes follow"),
    (with_raw(raw_strings(b"a"), b""), "raw_input_contents", "each of the 1 inputs, got 2"),
    (request(("input_ids", "INT32", [1, 2], b"\0" * 7)), "raw_input_contents[0]", "be 8 bytes"),
    (request(("input_ids", "INT64", [1, 2], b"\0" * 8)), "raw_input_contents[0]", "be 16 bytes"),
    (with_both_contents(), "inputs[0].contents", "must be empty"),
    (
        request(("text_input", "BYTES", [2], {"bytes_contents": [b"a"]}), raw=False),
        "inputs[0].contents.bytes_contents",
        "hold 2 elements, as the shape says, got 1",
    ),
    (
        request(("text_input", "BYTES", [1], {"int_contents": [1]}), raw=False),
        "inputs[0].contents",
        "only bytes_contents",
    ),
    (
        request(("input_ids", "INT64", [1, 1], {"int_contents": [5]}), raw=False),
        "inputs[0].contents",
        "only int64_contents",
    ),
    # Values.
    (request(("text_input", "BYTES", [1], raw_strings(b"\xff"))), "text_input[0]", "UTF-8"),
    (
        request(("text_input", "BYTES", [2], raw_strings(b"a", b"\xc0\x80"))),
        "text_input[1]",
        "UTF-8",
    ),
    (request(("text_input", "BYTES", [1], raw_strings(b""))), None, ""),  # only eos: valid
    (text_request("a" * ((1 << 20) + 1)), "text_input[0]", "1048576 bytes"),
    (request(ids([5, -1], [1, 2])), "input_ids[0][1]", "got -1"),
    (request(ids([5, 1 << 32], [1, 2])), "input_ids[0][1]", "got 4294967296"),
    (request(ids([5, 128], [1, 2])), "input_ids[0][1]", "must be below 128"),
    (request(ids([5] * 4097, [1, 4097])), "input_ids[0]", "at most 4096 tokens"),
    (request(IDS, ids([0], [1], "input_lengths")), "input_lengths[0]", "1 to 2, got 0"),
    (request(IDS, ids([3], [1], "input_lengths")), "input_lengths[0]", "1 to 2, got 3"),
    (request(IDS, ids([0, 0], [1, 2], "attention_mask")), "attention_mask[0]", "at least one"),
    (request(IDS, ids([1, 2], [1, 2], "attention_mask")), "attention_mask[0][1]", "0 or 1"),
    (
        request(ids([5, 6, 7], [1, 3]), ids([1, 0, 1], [1, 3], "attention_mask")),
        "attention_mask[0]",
        "one run",
    ),
    (
        request(IDS, ids([1, 1], [1, 2], "attention_mask"), ids([1], [1], "input_lengths")),
        "attention_mask",
        "cannot be combined",
    ),
    (request(ONE, ids([1], [1], "input_lengths")), "input_lengths", "needs input_ids"),
    # Targets and contexts.
    (request(ONE, ("target_text", "BYTES", [2, 1], raw_strings(b"a", b"b"))), "target_text", "["),
    (
        request(ONE, ("target_text", "BYTES", [1, 65], raw_strings(*[b"a"] * 65))),
        "target_text",
        "1 to 64",
    ),
    (
        request(ONE, ("target_text", "BYTES", [1, 2], raw_strings(b"a", b"\xff"))),
        "target_text[0][1]",
        "UTF-8",
    ),
    (request(ONE, ids([5, 128], [1, 1, 2], "target_ids")), "target_ids[0][0][1]", "below 128"),
    (request(ONE, ids([5], [1], "target_lengths")), "target_lengths", "needs target_ids"),
    (
        request(ONE, ("context", "BYTES", [1, 1], raw_strings(b"a")), wanted=["embedding"]),
        "context",
        "question answering",
    ),
    # Outputs.
    (request(ONE, wanted=["text"]), "outputs[0].name", "must be one of"),
    (request(ONE, wanted=["text_output"] * 2), "outputs[1].name", "before it"),
    (request(ONE, wanted=["text_output", "embedding"]), "outputs", "one operation"),
    (request(ONE, wanted=["log_prob"]), "inputs", "target_text or target_ids"),
    (
        request(ONE, ("target_text", "BYTES", [1], raw_strings(b"a")), wanted=["text_output"]),
        "target_text",
        "outputs of generate",
    ),
    (request(ONE, wanted=["embedding", "last_hidden_state"]), "outputs", "both"),
    (request(ONE, wanted=[f"o{i}" for i in range(33)]), "outputs", "at most 32"),
    (with_output_parameter(), "outputs[0].parameters", "classification"),
    # Parameters.
    (with_parameters(unknown=1), "parameters.unknown", "known: max_new_tokens"),
    (with_parameters(sequence_id=1), "parameters.sequence_id", "not known"),
    (with_parameters(timeout=1), "parameters.timeout", "deadline"),
    (with_parameters(pooling="mean"), "parameters.pooling", "not known"),
    (with_parameters(**{"a b/c": 1}), "parameters", "name of 5 bytes"),
    (with_parameters(**{"x" * 65: 1}), "parameters", "name of 65 bytes"),
    (with_parameters(**{f"p{i}": 1 for i in range(65)}), "parameters", "at most 64"),
    (with_parameters(num_beams=33), "parameters.num_beams", ""),
    (with_parameters(num_beams=-1), "parameters.num_beams", "whole number"),
    (with_parameters(num_beams=1.5), "parameters.num_beams", "whole number"),
    (with_parameters(num_beams=1 << 32), "parameters.num_beams", "whole number"),
    (with_parameters(num_beams=True), "parameters.num_beams", "whole number"),
    (with_parameters(num_beams="two"), "parameters.num_beams", "valid JSON"),
    (with_parameters(num_beams="[2]"), "parameters.num_beams", "whole number"),
    (with_parameters(do_sample=1), "parameters.do_sample", "true or false"),
    (with_parameters(seed=-1), "parameters.seed", "2^64 - 1"),
    (with_parameters(temperature=0.5), "parameters.temperature", ""),
    (with_parameters(do_sample=True, temperature=float("nan")), "parameters.temperature", ""),
    (with_parameters(do_sample=True, temperature=float("inf")), "parameters.temperature", ""),
    (with_parameters(do_sample=True, top_p=1e300), "parameters.top_p", ""),
    (with_parameters(do_sample=True, temperature="NaN"), "parameters.temperature", "valid JSON"),
    (with_parameters(early_stopping="maybe"), "parameters.early_stopping", "heuristic, first"),
    (with_parameters(stop='["a"'), "parameters.stop", "valid JSON"),
    (with_parameters(stop="[1]"), "parameters.stop", "list of strings"),
    (with_parameters(stop=""), "parameters.stop", ""),
    (with_parameters(bad_words_ids="[1]"), "parameters.bad_words_ids", "list of token ids"),
    (with_parameters(bad_words_ids="[" * 100), "parameters.bad_words_ids", "valid JSON"),
    (with_parameters(suppress_tokens="1" * (1 << 19)), "parameters.suppress_tokens", "of JSON"),
    (with_parameters(logprobs=True), "parameters.logprobs", "not known"),
    (with_parameters(model="g2p"), "parameters.model", "not known"),
    (with_parameters(priority=4), "parameters.priority", "1 or high"),
    (with_parameters(priority="urgent"), "parameters.priority", "1 or high"),
    (with_parameters(stream=True), "stream", "ModelStreamInfer"),
    (with_parameters(stream="maybe"), "parameters.stream", "true or false"),
    (request(ONE, wanted=["embedding"], parameters={"pooling": "none"}), "parameters.pooling", ""),
    (request(ONE, wanted=["embedding"], parameters={"pooling": "min"}), "parameters.pooling", ""),
    (
        request(ONE, wanted=["last_hidden_state"], parameters={"pooling": "max"}),
        "parameters.pooling",
        "no effect",
    ),
    (
        request(ONE, wanted=["embedding"], parameters={"prompt_name": "other"}),
        "parameters.prompt_name",
        "",
    ),
    (with_options(b"{"), "sampling_parameters", "JSON object"),
    (with_options([]), "sampling_parameters", "JSON object"),
    (with_options(b'{"n":1,"n":2}'), "sampling_parameters", "JSON object"),
    (with_options({"presence_penalty": 1}), "parameters.presence_penalty", "not known"),
    (with_options({"max_tokens": 0}), "parameters.max_new_tokens", ""),
    (with_options({"n": 2, "num_return_sequences": 2}), "parameters.num_return_sequences", "twice"),
    (
        request(
            ONE,
            ("sampling_parameters", "BYTES", [1], raw_strings(b"{}")),
            wanted=["embedding"],
        ),
        "sampling_parameters",
        "generate",
    ),
    # Names.
    (request(ONE, id="i" * 257), "id", "at most 256 bytes"),
    (request(ONE, model_name="m" * 129), "model_name", "at most 128"),
]


def failed(stub, message) -> Failure:
    return Failure.of(failure_of(lambda: stub.ModelInfer(message)))


def test_invalid_requests(server):
    """Each error has its code, field and text; afterwards the server still serves."""
    with stub_of(server) as stub:
        for i, (message, field, text) in enumerate(INVALID):
            if field is None:
                stub.ModelInfer(message)
                continue
            found = failed(stub, message)
            where = (i, found.message)
            assert (found.code, found.reason) == (Code.INVALID_ARGUMENT, "INVALID_FIELD"), where
            assert found.message.startswith(f"{field}: "), where
            assert [name for name, _ in found.fields] == [field], where
            assert text in found.message, where
            assert "/" not in found.message and len(found.message) <= 1024, where
        assert stub.ModelInfer(text_request("wagner")).raw_output_contents[0].endswith(b"ER0")


def test_the_same_requests_in_a_stream(server):
    """In a stream each request gets the error of the unary call, and the stream continues."""
    bad = [(message, field) for message, field, _ in INVALID if field not in (None, "stream")]
    with stub_of(server) as stub:
        unary = [failed(stub, message).message for message, _ in bad]
        responses = stub.ModelStreamInfer(iter([message for message, _ in bad]))
        got = sorted(response.error_message for response in responses)
    assert got == sorted(unary)


def test_names_of_models_and_versions(server):
    with stub_of(server) as stub:
        for message in (request(ONE, model_name="other"), request(ONE, model_version="2")):
            found = failed(stub, message)
            assert (found.code, found.reason) == (Code.NOT_FOUND, "MODEL_NOT_FOUND")
            assert found.message.startswith("model_")
        for call, kind in (
            (stub.ModelMetadata, service_pb2.ModelMetadataRequest),
            (stub.ModelConfig, service_pb2.ModelConfigRequest),
            (stub.ModelStatistics, service_pb2.ModelStatisticsRequest),
        ):
            for message in (kind(name="other"), kind(name="g2p", version="2")):
                error = Failure.of(failure_of(lambda c=call, m=message: c(m)))
                assert error.code == Code.NOT_FOUND
            assert call(kind()) is not None
        index = service_pb2.RepositoryIndexRequest(repository_name="x")
        error = Failure.of(failure_of(lambda: stub.RepositoryIndex(index)))
        assert error.code == Code.INVALID_ARGUMENT


def test_heads_and_tokenizers_that_are_missing(tiny_models, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in ("config.json", "model.safetensors"):
        (bare / file).write_bytes((tiny_models["t5-v1_1"] / file).read_bytes())
    with Server(tiny_models["t5-encoder"], bare) as server, stub_of(server) as stub:
        target = ("target_text", "BYTES", [1], raw_strings(b"a"))
        for message in (
            request(ONE, model_name="t5-encoder", wanted=["text_output"]),
            request(ONE, model_name="t5-encoder", wanted=["label"]),
            request(ONE, target, model_name="t5-encoder"),
            request(ONE, model_name="bare"),
            request(IDS, model_name="bare", wanted=["text_output"]),
        ):
            found = failed(stub, message)
            assert (found.code, found.reason) == (Code.FAILED_PRECONDITION, "HEAD_MISSING")
        found = failed(stub, request(ONE))
        assert found.code == Code.INVALID_ARGUMENT and found.message.startswith("model_name: ")
        assert stub.ModelInfer(request(IDS, model_name="bare")).outputs[0].name == "output_ids"


def test_malformed_bytes(server):
    with grpc.insecure_channel(server.target) as channel:
        path = "/inference.GRPCInferenceService/"
        for method in ("ModelInfer", "ModelReady", "ModelMetadata", "RepositoryIndex"):
            call = channel.unary_unary(path + method)
            found = Failure.of(failure_of(lambda c=call: c(b"\xff\xff\xff\xff")))
            assert found.code == Code.INVALID_ARGUMENT
        stream = channel.stream_stream(path + "ModelStreamInfer")
        found = Failure.of(failure_of(lambda: list(stream(iter([b"\xff\xff\xff\xff"])))))
        assert found.code == Code.INVALID_ARGUMENT


def test_deadlines(server):
    with stub_of(server) as stub:
        slow = text_request("a", parameters=ENDLESS)
        with pytest.raises(grpc.RpcError) as late:
            stub.ModelInfer(slow, timeout=0.2)
        assert late.value.code() == Code.DEADLINE_EXCEEDED
        with pytest.raises(grpc.RpcError) as late:
            # triton_grpc_error makes errors statuses, also if the server's own deadline passes
            # first.
            metadata = [("triton_grpc_error", "true")]
            list(stub.ModelStreamInfer(iter([slow]), timeout=0.2, metadata=metadata))
        assert late.value.code() == Code.DEADLINE_EXCEEDED
    client = triton.InferenceServerClient(server.target)
    with pytest.raises(InferenceServerException) as late:
        client.infer("g2p", [texts("a")], parameters=ENDLESS, client_timeout=0.2)
    assert "eadline" in str(late.value)
    client.close()
    assert eventually(lambda: server.metric("quintet_requests_running") == 0)


def test_a_full_queue():
    """A batch needs a place in the queue for each of its inputs."""
    with Server(G2P, max_running=1, max_queue=2) as server, stub_of(server) as stub:
        found = failed(stub, text_request("a", "b", "c"))
        assert (found.code, found.reason) == (Code.INVALID_ARGUMENT, "INVALID_FIELD")
        config = stub.ModelConfig(service_pb2.ModelConfigRequest()).config
        assert config.max_batch_size == 2
        running = stub.ModelInfer.future(text_request("a", "b", parameters=ENDLESS))
        assert eventually(lambda: server.metric("quintet_requests_waiting") == 2)
        found = failed(stub, text_request("a", "b"))
        assert (found.code, found.reason) == (Code.RESOURCE_EXHAUSTED, "QUEUE_FULL")
        assert found.retry_after_s is not None
        responses = stub.ModelStreamInfer(iter([text_request("a", "b", id="full")]))
        assert next(responses).infer_response.parameters["grpc_status"].int64_param == 8
        running.cancel()


def test_padding_counts_against_the_memory_budget():
    """Hidden states of one long input and 63 short ones are padded to the length of the long one.

    Such a response does not fit into a small server's memory; it is rejected before it is computed.
    """
    with Server(G2P, max_memory=400) as server, stub_of(server) as stub:
        message = text_request(*["a " * 2000, *["a"] * 63], wanted=["last_hidden_state"])
        started = time.monotonic()
        error = failure_of(lambda: stub.ModelInfer(message, timeout=60))
        assert error.code() in (Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED)
        assert time.monotonic() - started < 30
        assert stub.ModelInfer(text_request("a")).outputs


def test_many_requests_of_a_stream_wait_their_turn(server):
    """A client that sends 300 requests at once gets 300 answers."""
    message = text_request("wagner", id="x")
    with stub_of(server) as stub:
        assert len(list(stub.ModelStreamInfer(iter([message] * 300)))) == 300


def test_api_keys(tmp_path):
    """Only ServerLive, ServerReady and ModelReady are answered without a key."""
    file = tmp_path / "keys"
    file.touch(mode=0o600)
    digest = {key: hashlib.sha256(key.encode()).hexdigest() for key in ("right", "low")}
    file.write_text(f"{digest['right']}\n{digest['low']} low\n")
    with Server(G2P, api_key_file=file) as server:
        client = triton.InferenceServerClient(server.target)
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("g2p")
        for headers, code in (
            (None, "UNAUTHENTICATED"),
            ({"authorization": "Bearer wrong"}, "PERMISSION_DENIED"),
        ):
            for call in (
                client.get_server_metadata,
                lambda headers: client.get_model_metadata("g2p", headers=headers),
                lambda headers: client.get_model_config("g2p", headers=headers),
                lambda headers: client.get_inference_statistics("g2p", headers=headers),
                client.get_model_repository_index,
                lambda headers: client.infer("g2p", [texts("a")], headers=headers),
            ):
                with pytest.raises(InferenceServerException) as refused:
                    call(headers=headers)
                assert code in refused.value.status()
        right = {"authorization": "Bearer right"}
        assert client.get_server_metadata(headers=right).name == "quintet"
        assert client.infer("g2p", [texts("a")], headers=right).as_numpy("text_output").size
        with Stream(client, headers=right) as stream:
            stream.send([texts("wagner")])
            assert stream.until_final()[0].as_numpy("text_output")[0, 0] == b"W AE1 G N ER0"
        low = {"authorization": "Bearer low"}
        assert client.infer("g2p", [texts("a")], headers=low, priority=3)
        with pytest.raises(InferenceServerException) as refused:
            client.infer("g2p", [texts("a")], headers=low, priority=1)
        assert "PERMISSION_DENIED" in refused.value.status()
        client.close()


def test_tls(tmp_path):
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
            *("ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"),
        ],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=60,
    )
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    with Server(G2P, tls_cert=certificate, tls_key=key) as server:
        target = f"localhost:{server.target.split(':')[1]}"
        client = triton.InferenceServerClient(target, ssl=True, root_certificates=str(certificate))
        result = client.infer("g2p", [texts("wagner")])
        assert result.as_numpy("text_output")[0, 0] == b"W AE1 G N ER0"
        with Stream(client) as stream:
            stream.send([texts("wagner")], parameters={"stream": True})
            assert stream.until_final()
        client.close()
        plain = triton.InferenceServerClient(server.target)
        with pytest.raises(InferenceServerException):
            plain.infer("g2p", [texts("a")], client_timeout=5)
        plain.close()


def test_a_draining_server_is_not_ready():
    with Server(G2P, drain_delay=3) as server, grpc.insecure_channel(server.target) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        ready = service_pb2.ModelReadyRequest(name="g2p")
        assert stub.ServerReady(service_pb2.ServerReadyRequest()).ready
        assert stub.ModelReady(ready).ready
        server.process.terminate()
        assert eventually(lambda: not stub.ServerReady(service_pb2.ServerReadyRequest()).ready, 3)
        assert not stub.ModelReady(ready).ready
        assert stub.ServerLive(service_pb2.ServerLiveRequest()).live
        # During the drain delay the server still serves calls.
        assert stub.ModelInfer(text_request("a")).outputs
        assert server.process.wait(60) == 0
