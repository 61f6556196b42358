"""Tests KServe's gRPC protocol (server/KSERVE.md) with tritonclient: answers equal quintet.v1's."""

import json
import re
import time

import grpc
import numpy
import pytest
import tritonclient.grpc as triton
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from grpc_tools import protoc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from kserve_requests import (
    outputs,
    raw_strings,
    request,
    stub_of,
    tensor,
    text_request,
    texts,
)
from quintet.wire import pb
from server_process import G2P, SOURCE, Server, eventually, words

WORDS = words(8)


@pytest.fixture(scope="module")
def infer(server):
    client = triton.InferenceServerClient(server.target)
    yield lambda inputs, *wanted, **arguments: client.infer(
        "g2p", inputs, outputs=outputs(*wanted) or None, client_timeout=60, **arguments
    )
    client.close()


@pytest.fixture(scope="module")
def heads(tiny_models):
    names = ("t5-encoder", "t5-seqcls", "t5-tokcls", "t5-qa", "gpt2")
    with Server(*(tiny_models[name] for name in names)) as running:
        yield running


def test_the_published_field_numbers(tmp_path):
    """All fields, enum values and methods of our proto are as in tritonclient's descriptors."""
    out = tmp_path / "descriptors"
    arguments = [f"-I{SOURCE / 'proto'}", f"--descriptor_set_out={out}"]
    assert protoc.main(["protoc", *arguments, "inference/grpc_inference.proto"]) == 0
    ours = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file[0]
    published = {}
    for file in (service_pb2, service_pb2.model__config__pb2):
        theirs = descriptor_pb2.FileDescriptorProto()
        file.DESCRIPTOR.CopyToProto(theirs)
        published |= {message.name: message for message in theirs.message_type}
        published |= {enum.name: enum for enum in theirs.enum_type}
        published |= {service.name: service for service in theirs.service}

    def compare(mine, other):
        fields = {field.name: field for field in other.field}
        for field in mine.field:
            same = fields[field.name]
            for part in ("number", "type", "label", "type_name"):
                assert getattr(field, part) == getattr(same, part), (mine.name, field.name)
            assert field.HasField("oneof_index") <= same.HasField("oneof_index")
        for nested in mine.nested_type:
            compare(nested, next(one for one in other.nested_type if one.name == nested.name))
        for enum in mine.enum_type:
            assert enum == next(one for one in other.enum_type if one.name == enum.name)

    for message in ours.message_type:
        compare(message, published[message.name])
    for enum in ours.enum_type:
        assert enum == published[enum.name]
    methods = {method.name: method for method in published["GRPCInferenceService"].method}
    for method in ours.service[0].method:
        same = methods[method.name]
        for part in ("input_type", "output_type", "client_streaming", "server_streaming"):
            assert getattr(method, part) == getattr(same, part)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 4, "num_return_sequences": 3},
        {"do_sample": True, "seed": 7, "temperature": 0.5, "num_return_sequences": 2},
        {"stop": ["AE1"], "max_new_tokens": 6},
        {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
    ],
)
def test_generated_texts_equal_those_of_quintet_v1(client, infer, options):
    """A batch gives the texts, ids, scores and finish reasons of separate calls of quintet.v1."""
    parameters = {
        name: json.dumps(value) if isinstance(value, list) else value
        for name, value in options.items()
    }
    names = ("text_output", "output_ids", "sequence_length", "finish_reason", "matched_stop")
    names += ("output_log_probs", "cumulative_logprob", "seed")
    beams = {"sequence_scores": "return_scores"} if "num_beams" in options else {}
    names += tuple(beams)
    result = infer([texts(*WORDS)], *names, "num_input_tokens", parameters=parameters)
    arrays = {name: result.as_numpy(name) for name in names}
    for row, word in enumerate(WORDS):
        flags = dict.fromkeys(("logprobs", *beams.values()), True)
        unary = client.generate(word, {**options, **flags})
        assert len(unary.sequences) <= arrays["text_output"].shape[1]
        assert arrays["seed"][row, 0] == unary.seed
        assert result.as_numpy("num_input_tokens")[row, 0] == unary.info.usage.input_tokens
        for i, sequence in enumerate(unary.sequences):
            length = len(sequence.token_ids)
            assert arrays["text_output"][row, i].decode() == sequence.text
            assert arrays["sequence_length"][row, i] == length
            assert list(arrays["output_ids"][row, i, :length]) == list(sequence.token_ids)
            if beams:
                assert arrays["sequence_scores"][row, i] == numpy.float32(sequence.score)
            log_probs = [token.log_prob for token in sequence.logprobs]
            assert list(arrays["output_log_probs"][row, i, : len(log_probs)]) == log_probs
            assert arrays["cumulative_logprob"][row, i] == pytest.approx(sum(log_probs), rel=1e-6)
            reason = "length" if sequence.finish_reason == pb.FINISH_REASON_LENGTH else "stop"
            assert arrays["finish_reason"][row, i].decode() == reason
            assert arrays["matched_stop"][row, i].decode() == sequence.matched_stop


def test_default_outputs_and_info(infer):
    result = infer([texts("wagner")], request_id="mine-1")
    response = result.get_response()
    assert (response.model_name, response.model_version, response.id) == ("g2p", "1", "mine-1")
    assert [(output.name, list(output.shape)) for output in response.outputs] == [
        ("text_output", [1, 1])
    ]
    assert result.as_numpy("text_output")[0, 0] == b"W AE1 G N ER0"
    assert response.parameters["request_id"].string_param == "mine-1"
    assert response.parameters["input_tokens"].int64_param > 0
    assert response.parameters["total_us"].int64_param > 0


def test_a_tensor_without_second_dimension(infer):
    """As in Triton's vLLM back end, an input [n] gives an output [n * sequences]."""
    result = infer([texts("wagner", flat=True)])
    assert list(result.as_numpy("text_output")) == [b"W AE1 G N ER0"]
    result = infer(
        [texts("wagner", "phoneme", flat=True)],
        parameters={"num_beams": 2, "num_return_sequences": 2},
    )
    batch = infer(
        [texts("wagner", "phoneme")], parameters={"num_beams": 2, "num_return_sequences": 2}
    )
    assert list(result.as_numpy("text_output")) == list(batch.as_numpy("text_output").reshape(-1))


def test_sampling_parameters_as_of_vllm(client, infer):
    options = {"temperature": 0.7, "top_p": 0.9, "seed": 3, "max_tokens": 9, "n": 2}
    result = infer([texts("wagner"), texts(json.dumps(options), name="sampling_parameters")])
    unary = client.generate(
        "wagner",
        {
            "do_sample": True,
            "temperature": 0.7,
            "top_p": 0.9,
            "seed": 3,
            "max_new_tokens": 9,
            "num_return_sequences": 2,
        },
    )
    assert [text.decode() for text in result.as_numpy("text_output")[0]] == [
        sequence.text for sequence in unary.sequences
    ]
    greedy = infer(
        [texts("wagner"), texts('{"temperature": 0, "seed": 1}', name="sampling_parameters")]
    )
    assert greedy.as_numpy("text_output")[0, 0] == b"W AE1 G N ER0"


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_token_ids(client, infer, dtype):
    """Sends rows padded on the right or left, with their lengths or an attention mask."""
    rows = [[token.id for token in client.tokenize(word).tokens] for word in WORDS]
    longest = max(len(row) for row in rows)
    right = numpy.array([row + [0] * (longest - len(row)) for row in rows], dtype)
    left = numpy.array([[0] * (longest - len(row)) + row for row in rows], dtype)
    lengths = numpy.array([[len(row)] for row in rows], "int32")
    mask = (numpy.arange(longest) < lengths).astype("int64")
    expected = [client.generate(row).sequences[0] for row in rows]
    for inputs in (
        [tensor("input_ids", right), tensor("input_lengths", lengths)],
        [tensor("input_ids", right), tensor("attention_mask", mask)],
        [tensor("input_ids", left), tensor("attention_mask", mask[:, ::-1].copy())],
    ):
        result = infer(inputs)
        for row, sequence in enumerate(expected):
            length = result.as_numpy("sequence_length")[row, 0]
            assert list(result.as_numpy("output_ids")[row, 0, :length]) == list(sequence.token_ids)
        result = infer(inputs, "text_output")
        assert [text.decode() for text in result.as_numpy("text_output")[:, 0]] == [
            sequence.text for sequence in expected
        ]


def test_typed_contents_equal_raw_contents(server):
    """Typed and raw requests give the same answer; the response has the form of the request."""
    with stub_of(server) as stub:
        raw = stub.ModelInfer(text_request(*WORDS, wanted=["text_output", "seed"]))
        typed = stub.ModelInfer(
            request(
                ("text_input", "BYTES", [8, 1], {"bytes_contents": [w.encode() for w in WORDS]}),
                raw=False,
                wanted=["text_output", "seed", "output_ids", "output_log_probs"],
            )
        )
        assert not typed.raw_output_contents
        assert raw_strings(*typed.outputs[0].contents.bytes_contents) == raw.raw_output_contents[0]
        assert list(typed.outputs[1].contents.uint64_contents) == [0] * 8
        count = numpy.prod(typed.outputs[2].shape)
        assert len(typed.outputs[2].contents.int_contents) == count
        assert len(typed.outputs[3].contents.fp32_contents) == numpy.prod(typed.outputs[3].shape)
        ids = typed.outputs[2].contents.int_contents[:3]
        again = stub.ModelInfer(
            request(("input_ids", "INT64", [1, 3], {"int64_contents": ids}), raw=False)
        )
        assert [output.name for output in again.outputs] == ["output_ids", "sequence_length"]
        score = stub.ModelInfer(
            request(
                ("text_input", "BYTES", [1], {"bytes_contents": [b"a"]}),
                ("target_text", "BYTES", [2], {"bytes_contents": [b"b", b"c"]}),
                raw=False,
            )
        )
        assert len(score.outputs[0].contents.fp64_contents) == 2


def test_embeddings(client, infer):
    values = infer([texts(*WORDS)], "embedding").as_numpy("embedding")
    expected = client.encode(WORDS)
    for row, embedding in enumerate(expected.embeddings):
        assert values[row].tobytes() == embedding.values
    options = {"pooling": "max", "normalize": True}
    values = infer([texts("one")], "embedding", parameters=options).as_numpy("embedding")
    same = client.encode(["one"], pooling="MAX", normalize=True)
    assert values.tobytes() == same.embeddings[0].values
    half = infer([texts("one")], "embedding", parameters={"vector_type": "FP16"})
    same = client.encode(["one"], vector_type="FP16")
    assert half.get_response().outputs[0].datatype == "FP16"
    assert half.get_response().raw_output_contents[0] == same.embeddings[0].values


def test_hidden_states_are_padded(client, infer):
    result = infer([texts(*WORDS)], "last_hidden_state", "num_input_tokens")
    states = result.as_numpy("last_hidden_state")
    for row, word in enumerate(WORDS):
        length = result.as_numpy("num_input_tokens")[row, 0]
        embedding = client.encode([word], pooling="NONE").embeddings[0]
        assert embedding.rows == length
        assert states[row, :length].tobytes() == embedding.values
        assert not states[row, length:].any()


def test_scores(client, infer):
    """Targets as texts, and as ids with lengths."""
    targets = [["W AE1", "F OW1 N"], ["P", "B IY1 M Z"]]
    pairs = list(zip(["wagner", "phoneme"], targets, strict=True))
    expected = [client.score(word, both) for word, both in pairs]
    as_text = numpy.array([[t.encode() for t in both] for both in targets], dtype=object)
    names = ("log_prob", "target_length", "token_log_probs")
    ids = [[[t.id for t in client.tokenize(one).tokens] for one in both] for both in targets]
    longest = max(len(one) for both in ids for one in both)
    padded = [[one + [0] * (longest - len(one)) for one in both] for both in ids]
    lengths = [[len(one) for one in both] for both in ids]
    for target in (
        [tensor("target_text", as_text)],
        [tensor("target_ids", padded, "int64"), tensor("target_lengths", lengths, "int32")],
    ):
        result = infer([texts("wagner", "phoneme"), *target], *names)
        for row, answer in enumerate(expected):
            for i, score in enumerate(answer.scores):
                assert result.as_numpy("log_prob")[row, i] == score.log_prob
                assert result.as_numpy("target_length")[row, i] == score.tokens
                tokens = [token.log_prob for token in score.logprobs]
                assert list(result.as_numpy("token_log_probs")[row, i, : len(tokens)]) == tokens


def test_labels_of_texts_and_tokens(heads):
    inputs = ["one two", "phoneme"]
    for model in ("t5-seqcls", "t5-tokcls"):
        with heads.client(call={"model": model}) as client:
            expected = client.classify(inputs).results
        triton_client = triton.InferenceServerClient(heads.target)
        names = ["label", "probabilities", "logits"] + ["offsets"] * (model == "t5-tokcls")
        result = triton_client.infer(model, [texts(*inputs)], outputs=outputs(*names))
        config = triton_client.get_model_config(model).config
        labels = json.loads(config.parameters["labels"].string_value)
        arrays = {name: result.as_numpy(name) for name in names}
        for row, one in enumerate(expected):
            if model == "t5-seqcls":
                best = max(one.labels, key=lambda label: label.logit)
                assert arrays["label"][row, 0].decode() == best.label
                assert list(arrays["logits"][row]) == [label.logit for label in one.labels]
                assert list(arrays["probabilities"][row]) == [
                    label.probability for label in one.labels
                ]
                continue
            for i, token in enumerate(one.tokens):
                assert arrays["label"][row, i].decode() == token.labels[0].label
                assert list(arrays["offsets"][row, i]) == [token.begin_byte, token.end_byte]
                for label in token.labels:
                    column = labels.index(label.label)
                    assert arrays["logits"][row, i, column] == label.logit
                    assert arrays["probabilities"][row, i, column] == label.probability
            assert not arrays["logits"][row, len(one.tokens) :].any()
        triton_client.close()


def test_answers_to_questions(heads):
    questions, contexts = ["who", "what is it"], ["a man in a boat", "it is a phoneme of two"]
    with heads.client(call={"model": "t5-qa"}) as client:
        expected = client.classify(questions, contexts, top_k=3).results
    client = triton.InferenceServerClient(heads.target)
    result = client.infer(
        "t5-qa",
        [texts(*questions), texts(*contexts, name="context")],
        outputs=outputs("answer", "answer_score", "answer_offsets"),
        parameters={"top_k": 3},
    )
    for row, one in enumerate(expected):
        for i, answer in enumerate(one.answers):
            assert result.as_numpy("answer")[row, i].decode() == answer.text
            assert result.as_numpy("answer_score")[row, i] == numpy.float32(answer.score)
            assert list(result.as_numpy("answer_offsets")[row, i]) == [
                answer.begin_byte,
                answer.end_byte,
            ]
    client.close()


def test_the_operation_follows_the_head(heads):
    client = triton.InferenceServerClient(heads.target)
    for model, expected in (
        ("t5-encoder", ["embedding"]),
        ("t5-seqcls", ["label", "probabilities"]),
        ("t5-tokcls", ["label", "probabilities"]),
        ("gpt2", ["text_output"]),
    ):
        response = client.infer(model, [texts("one")]).get_response()
        assert [output.name for output in response.outputs] == expected
    client.close()


def test_metadata_and_configuration_name_what_a_model_returns(heads, server):
    """Every output that the metadata names can be requested, and has its datatype and rank."""
    for running, models in ((server, ["g2p"]), (heads, ["t5-encoder", "t5-seqcls", "t5-tokcls"])):
        client = triton.InferenceServerClient(running.target)
        for model in models:
            metadata = client.get_model_metadata(model)
            config = client.get_model_config(model).config
            assert (metadata.name, list(metadata.versions)) == (model, ["1"])
            assert config.max_batch_size == 64
            assert config.model_transaction_policy.decoupled == (model == "g2p")
            assert config.instance_group[0].kind == 2  # KIND_CPU
            assert [o.name for o in config.output] == [o.name for o in metadata.outputs]
            assert [i.name for i in config.input] == [i.name for i in metadata.inputs]
            for output, configured in zip(metadata.outputs, config.output, strict=True):
                assert list(output.shape) == [-1, *configured.dims]
                inputs = [texts("one", "phoneme")]
                if output.name in ("log_prob", "target_length", "token_log_probs"):
                    inputs.append(texts("b", "c", name="target_text"))
                options = {"num_beams": 2} if output.name == "sequence_scores" else None
                result = client.infer(
                    model, inputs, outputs=outputs(output.name), parameters=options
                )
                got = result.get_response().outputs[0]
                assert got.datatype == output.datatype, output.name
                assert len(got.shape) == len(output.shape), output.name
                for size, declared in zip(got.shape, output.shape, strict=True):
                    assert declared in (-1, size), output.name
        client.close()


def test_tensors_and_methods_are_documented(heads, server):
    """server/KSERVE.md names every tensor of every model, and every method."""
    documented = (SOURCE / "server" / "KSERVE.md").read_text(encoding="utf-8")
    models = [(server, "g2p")]
    models += [(heads, name) for name in ("t5-encoder", "t5-seqcls", "t5-tokcls", "t5-qa", "gpt2")]
    for running, model in models:
        client = triton.InferenceServerClient(running.target)
        metadata = client.get_model_metadata(model)
        for one in (*metadata.inputs, *metadata.outputs):
            assert f"`{one.name}`" in documented, one.name
        client.close()
    proto = (SOURCE / "proto" / "inference" / "grpc_inference.proto").read_text(encoding="utf-8")
    for method in re.findall(r"rpc (\w+)\(", proto):
        assert f"`{method}`" in documented, method


def test_health_metadata_and_index(server, heads):
    client = triton.InferenceServerClient(server.target)
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("g2p") and client.is_model_ready("g2p", "1")
    assert not client.is_model_ready("other") and not client.is_model_ready("g2p", "2")
    metadata = client.get_server_metadata()
    assert metadata.name == "quintet"
    with server.client() as quintet:
        assert metadata.version == quintet.info().version
    client.close()
    client = triton.InferenceServerClient(heads.target)
    index = client.get_model_repository_index().models
    assert [model.name for model in index] == [
        "t5-encoder",
        "t5-seqcls",
        "t5-tokcls",
        "t5-qa",
        "gpt2",
    ]
    assert {(model.state, model.version) for model in index} == {("READY", "1")}
    client.close()


def test_statistics_are_those_of_the_metrics(tiny_models):
    with (
        Server(tiny_models["t5-v1_1"], G2P) as running,
        running.client(call={"model": "g2p"}) as v1,
    ):
        client = triton.InferenceServerClient(running.target)
        assert client.get_inference_statistics("g2p").model_stats[0].last_inference == 0
        client.infer("g2p", [texts("one", "two", "three")])
        v1.generate("four")
        statistics = client.get_inference_statistics("g2p").model_stats[0]
        assert (statistics.name, statistics.version) == ("g2p", "1")
        assert statistics.inference_count == 4
        assert abs(statistics.last_inference / 1000 - time.time()) < 60
        assert statistics.execution_count == running.metric(
            "quintet_step_batch_size_count", model_name="g2p"
        )
        inference = statistics.inference_stats
        assert inference.success.count == 4 and inference.fail.count == 0
        for part, metric in (
            (inference.success, "e2e_request_latency"),
            (inference.queue, "request_queue_time"),
            (inference.compute_infer, "request_inference_time"),
        ):
            total = running.metric(f"quintet_{metric}_seconds_sum", model_name="g2p")
            assert part.ns == pytest.approx(total * 1e9, rel=1e-6, abs=1)
        sums = inference.queue.ns + inference.compute_input.ns + inference.compute_infer.ns
        assert sums == pytest.approx(inference.success.ns, abs=10)
        assert [one.name for one in client.get_inference_statistics().model_stats] == [
            "t5-v1_1",
            "g2p",
        ]
        assert running.metric("quintet_requests_accepted_total", rpc="ModelInfer") == 3
        client.close()


def test_a_cancelled_request_stops(server):
    endless = {"ignore_eos": True, "max_new_tokens": 4000}
    with stub_of(server) as stub:
        unary = stub.ModelInfer.future(text_request("a", "b", parameters=endless))
        stream = stub.ModelStreamInfer(
            iter([text_request("a", parameters={**endless, "stream": True})])
        )
        next(stream)
        assert eventually(lambda: server.metric("quintet_requests_running") == 3)
        unary.cancel()
        stream.cancel()
        assert eventually(lambda: server.metric("quintet_requests_running") == 0)


def test_the_protocol_is_reflected(server):
    """grpc_cli and grpcurl find the service and its messages."""
    with grpc.insecure_channel(server.target) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "inference.GRPCInferenceService" in database.get_services()
        pool = DescriptorPool(database)
        message = pool.FindMessageTypeByName("inference.ModelInferRequest")
        # As published; our own .proto has a list of entries.
        assert message.fields_by_name["parameters"].message_type.GetOptions().map_entry


def test_methods_that_are_not_served(server):
    with grpc.insecure_channel(server.target) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for call, message in (
            (stub.RepositoryModelLoad, service_pb2.RepositoryModelLoadRequest(model_name="g2p")),
            (stub.SystemSharedMemoryStatus, service_pb2.SystemSharedMemoryStatusRequest()),
            (stub.TraceSetting, service_pb2.TraceSettingRequest()),
        ):
            with pytest.raises(grpc.RpcError) as failed:
                call(message)
            assert failed.value.code() == grpc.StatusCode.UNIMPLEMENTED
            assert "loading and unloading" in failed.value.details()
