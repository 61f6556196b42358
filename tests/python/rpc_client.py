"""A client for tests that sends and returns messages of proto/quintet/v1/inference.proto, so that
they see every field; `quintet.Client` is the interface for users.

    with RpcClient("127.0.0.1:50051") as client:
        print(client.generate("phoneme", decoding={"num_beams": 4}).sequences[0].text)
        for event in client.stream("phoneme"):
            print(event.chunk.text, end="")

Methods raise grpc.RpcError; `quintet.rpc.Failure.of` reads its details.
"""

from __future__ import annotations

import struct
from typing import Any

import grpc
from google.protobuf import json_format

from quintet.rpc import Tls, check_key, make_channel_options
from quintet.wire import HEALTH, Stub, health, pb


def make_input(value) -> Any:  # pb.Input
    """Converts text or a list of token ids to an Input; returns an Input unchanged."""
    if isinstance(value, pb.Input):
        return value
    if isinstance(value, str):
        return pb.Input(text=value)
    return pb.Input(token_ids=pb.TokenIds(ids=value))


def vectors(embedding: Any) -> list[list[float]]:
    """Returns the rows of an embedding, each as a list of numbers."""
    count, values = embedding.rows * embedding.columns, embedding.values
    if embedding.vector_type == pb.VECTOR_TYPE_BF16:  # the upper half of a float32
        values = b"".join(b"\0\0" + values[i : i + 2] for i in range(0, len(values), 2))
    letter = "e" if embedding.vector_type == pb.VECTOR_TYPE_FP16 else "f"
    numbers = struct.unpack(f"<{count}{letter}", values)
    return [list(numbers[i : i + embedding.columns]) for i in range(0, count, embedding.columns)]


class RpcClient:
    """A channel to one server. May be used by several threads.

    `call`: CallOptions for every call ({"model": "g2p", "priority": "PRIORITY_LOW"}).
    `decoding` of a method: DecodingOptions as a message or a dict.
    `attempts`: maximum attempts including the first (gRPC allows up to 5); 1 means no retries.
    An API key is not sent in plain text beyond this machine unless `allow_plaintext`: ValueError.
    """

    def __init__(
        self,
        target: str = "127.0.0.1:50051",
        *,
        tls: Tls | None = None,
        api_key: str | None = None,
        timeout_s: float | None = 60.0,
        attempts: int = 5,
        call: dict | None = None,
        max_message_bytes: int = 64 << 20,
        allow_plaintext: bool = False,
        channel_options: tuple = (),
    ):
        check_key(target, tls, api_key, allow_plaintext)
        options = [*make_channel_options(tls, attempts, max_message_bytes), *channel_options]
        self.channel = (
            grpc.secure_channel(target, tls.credentials(), options)
            if tls
            else grpc.insecure_channel(target, options)
        )
        self.stub = Stub(self.channel)
        self._call = call or {}
        self._sending = {
            "timeout": timeout_s,
            "metadata": (("authorization", f"Bearer {api_key}"),) if api_key else None,
        }

    def __enter__(self) -> RpcClient:
        return self

    def __exit__(self, *_) -> None:
        self.channel.close()

    def _options(self) -> Any:  # pb.CallOptions
        return json_format.ParseDict(self._call, pb.CallOptions())

    def generate_request(self, value, decoding=None) -> Any:  # pb.GenerateRequest
        """The request of `generate` and `stream`."""
        if not isinstance(decoding, pb.DecodingOptions):
            decoding = json_format.ParseDict(decoding or {}, pb.DecodingOptions())
        return pb.GenerateRequest(call=self._options(), input=make_input(value), decoding=decoding)

    def generate(self, value, decoding=None) -> Any:  # pb.GenerateResponse
        return self.stub.Generate(self.generate_request(value, decoding), **self._sending)

    def stream(self, value, decoding=None):
        """Yields GenerateStreamResponse: chunks, then one `complete`."""
        return self.stub.GenerateStream(self.generate_request(value, decoding), **self._sending)

    def encode(self, values, **options) -> Any:  # pb.EncodeResponse
        """`options`: those of encode_options."""
        request = pb.EncodeRequest(
            call=self._options(),
            inputs=[make_input(value) for value in values],
            options=encode_options(**options),
        )
        return self.stub.Encode(request, **self._sending)

    def encode_stream(self, values, **options):
        """Encodes an iterable of any length; yields EncodeStreamResponse in completion order,
        with item_id = index in `values`. `options`: the arguments of encode_options."""
        message = encode_options(**options)
        requests = (
            pb.EncodeStreamRequest(
                call=self._options(), item_id=i, input=make_input(value), options=message
            )
            for i, value in enumerate(values)
        )
        return self.stub.EncodeStream(requests, **self._sending)

    def score(
        self,
        value,
        targets,
        *,
        top_logprobs: int = 0,
        sliding_window: int = 0,
        prefix_lm: bool = False,
    ) -> Any:  # pb.ScoreResponse
        request = pb.ScoreRequest(
            call=self._options(),
            input=make_input(value),
            targets=[make_input(t) for t in targets],
            top_logprobs=top_logprobs,
            sliding_window=sliding_window,
            prefix_lm=prefix_lm,
        )
        return self.stub.Score(request, **self._sending)

    def classify(
        self, values, pairs=(), *, top_k: int = 0, max_answer_tokens: int = 0
    ) -> Any:  # pb.ClassifyResponse
        """`pairs`: the context of each question, for question answering only. If `top_k` or
        `max_answer_tokens` is 0, the server uses its default for that argument."""
        request = pb.ClassifyRequest(
            call=self._options(),
            inputs=[make_input(v) for v in values],
            pairs=[make_input(p) for p in pairs],
            top_k=top_k,
            max_answer_tokens=max_answer_tokens,
        )
        return self.stub.Classify(request, **self._sending)

    def tokenize(self, text: str) -> Any:  # pb.TokenizeResponse
        return self.stub.Tokenize(
            pb.TokenizeRequest(call=self._options(), text=text), **self._sending
        )

    def detokenize(self, ids, *, skip_special_tokens: bool = True) -> Any:  # pb.DetokenizeResponse
        request = pb.DetokenizeRequest(
            call=self._options(), token_ids=ids, skip_special_tokens=skip_special_tokens
        )
        return self.stub.Detokenize(request, **self._sending)

    def info(self) -> Any:  # pb.GetModelInfoResponse
        return self.stub.GetModelInfo(
            pb.GetModelInfoRequest(model=self._call.get("model", "")), **self._sending
        )

    def list_models(self) -> Any:  # pb.ListModelsResponse
        return self.stub.ListModels(pb.ListModelsRequest(), **self._sending)

    def health(self, service: str = "") -> str:
        """Health of the server or of `service`: SERVING or NOT_SERVING. Needs no API key."""
        stub = Stub(self.channel, HEALTH)
        answer = stub.Check(
            health.HealthCheckRequest(service=service), timeout=self._sending["timeout"]
        )
        return health.HealthCheckResponse.ServingStatus.Name(answer.status)


def encode_options(
    *, pooling: str = "UNSPECIFIED", normalize: bool = False, vector_type: str = "FP32"
) -> Any:  # pb.EncodeOptions
    return pb.EncodeOptions(
        pooling=f"POOLING_{pooling}", normalize=normalize, vector_type=f"VECTOR_TYPE_{vector_type}"
    )
