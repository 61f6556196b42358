"""Tests the streams of KServe's gRPC protocol (server/KSERVE.md) with tritonclient."""

import grpc
import pytest
import tritonclient.grpc as triton

from kserve_requests import Stream, is_final, outputs, stub_of, tensor, text_request, texts
from server_process import words

WORDS = words(8)


def streamed(stream, inputs, wanted, **arguments) -> list:
    stream.send(inputs, outputs=outputs(*wanted), **arguments)
    return stream.until_final()


@pytest.mark.parametrize("empty_final", [False, True])
def test_streamed_texts_equal_unary_ones(client, server, empty_final):
    """Chunks and the final response together are the text and the ids of the unary answer."""
    triton_client = triton.InferenceServerClient(server.target)
    with Stream(triton_client) as stream:
        for options in ({}, {"num_beams": 3}, {"do_sample": True, "seed": 5}):
            for word in WORDS:
                unary = client.generate(word, options).sequences[0]
                results = streamed(
                    stream,
                    [texts(word)],
                    ["text_output", "output_ids", "finish_reason", "sequence_length"],
                    parameters={**options, "stream": True},
                    request_id=word,
                    enable_empty_final_response=empty_final,
                )
                assert {result.get_response().id for result in results} == {word}
                got = [r.as_numpy("text_output") for r in results]
                assert b"".join(a[0, 0] for a in got if a is not None).decode() == unary.text
                ids = [r.as_numpy("output_ids") for r in results]
                assert sum((list(a[0, 0]) for a in ids if a is not None), []) == unary.token_ids
                assert results[-1].as_numpy("sequence_length")[0, 0] == len(unary.token_ids)
                assert all(r.as_numpy("finish_reason") is None for r in results[:-1])
        results = streamed(
            stream,
            [texts("wagner")],
            ["text_output"],
            parameters={"stream": True},
            enable_empty_final_response=empty_final,
        )
        rest = results[-1].as_numpy("text_output")
        # Text that no chunk had is in the final response.
        assert rest is None or rest[0, 0] or not empty_final
        assert rest is not None or empty_final
    triton_client.close()


def test_several_samples_in_a_stream(client, server):
    options = {"do_sample": True, "seed": 5, "num_return_sequences": 3}
    unary = client.generate("wagner", options)
    triton_client = triton.InferenceServerClient(server.target)
    with Stream(triton_client) as stream:
        results = streamed(
            stream, [texts("wagner")], ["text_output"], parameters={**options, "stream": True}
        )
    got = ["", "", ""]
    for result in results[:-1]:
        index = result.get_response().parameters["sequence_index"].int64_param
        got[index] += result.as_numpy("text_output")[0, 0].decode()
    for index, rest in enumerate(results[-1].as_numpy("text_output")[0]):
        got[index] += rest.decode()
    assert got == [sequence.text for sequence in unary.sequences]
    triton_client.close()


def test_a_stream_returns_chunks_while_the_text_grows(server):
    triton_client = triton.InferenceServerClient(server.target)
    with Stream(triton_client) as stream:
        stream.send(
            [texts("a"), tensor("stream", [[True]])],
            parameters={"ignore_eos": True, "max_new_tokens": 400},
        )
        results = stream.until_final()
    assert len(results) > 10
    triton_client.close()


def test_requests_of_a_stream_are_answered_by_id(client, server):
    """Without `stream` each request has one response; an error ends only its request."""
    triton_client = triton.InferenceServerClient(server.target)
    got, errors = {}, []
    with Stream(triton_client) as stream:
        for i, word in enumerate(words(100)):
            bad = i % 10 == 3
            stream.send(
                [texts(word)], request_id=word, parameters={"num_beams": 99} if bad else None
            )
        for _ in range(100):
            result, error = stream.next()
            if error is not None:
                errors.append(str(error))
                continue
            assert is_final(result)
            got[result.get_response().id] = result.as_numpy("text_output")[0, 0].decode()
    assert len(errors) == 10
    assert all("parameters.num_beams: " in error for error in errors)
    for word in list(got)[:10]:
        assert got[word] == client.generate(word).sequences[0].text
    triton_client.close()


def test_errors_of_a_stream_as_messages_or_statuses(server):
    bad = text_request("a", parameters={"num_beams": 99}, id="bad")
    good = text_request("wagner", id="good")
    with stub_of(server) as stub:
        first, second = sorted(
            stub.ModelStreamInfer(iter([bad, good])), key=lambda r: r.infer_response.id
        )
        assert "parameters.num_beams" in first.error_message
        assert first.infer_response.parameters["grpc_status"].int64_param == 3
        assert first.infer_response.parameters["triton_final_response"].bool_param
        assert second.error_message == "" and second.infer_response.id == "good"
        call = stub.ModelStreamInfer(iter([bad]), metadata=(("triton_grpc_error", "true"),))
        with pytest.raises(grpc.RpcError) as failed:
            list(call)
        assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT
