"""One interface to every way in which clients reach a model: the RPCs of quintet.v1 and of KServe,
and the routes of the HTTP API. Tests send the same request through all of them.
"""

import dataclasses
import json

import grpc
from tritonclient.grpc import service_pb2_grpc

from http_api import HttpServer
from kserve_requests import raw_strings, request
from quintet.rpc import Failure
from quintet.wire import pb

Code = grpc.StatusCode

# The table of server/HTTP.md.
HTTP_CODES = {
    400: Code.INVALID_ARGUMENT,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.NOT_FOUND,
    409: Code.FAILED_PRECONDITION,
    413: Code.RESOURCE_EXHAUSTED,
    429: Code.RESOURCE_EXHAUSTED,
    503: Code.UNAVAILABLE,
    504: Code.DEADLINE_EXCEEDED,
}


@dataclasses.dataclass
class Call:
    """A generation. `input`: a text or token ids. `options`: of pb.DecodingOptions."""

    input: str | list[int] = "wagner"
    options: dict = dataclasses.field(default_factory=dict)
    model: str = ""
    timeout_s: float = 60
    key: str = ""
    priority: str = ""  # low, normal or high


@dataclasses.dataclass
class Answer:
    """The text of the best sequence, or an error. `field`: the field that the error names."""

    code: grpc.StatusCode = Code.OK
    text: str = ""
    message: str = ""
    field: str = ""
    retry: bool = False


def plain(value):
    """A value of a DecodingOptions field as JSON."""
    if isinstance(value, pb.Input):
        return list(value.token_ids.ids) if value.HasField("token_ids") else value.text or None
    if isinstance(value, pb.TokenIds):
        return list(value.ids)
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, str) and value.startswith("EARLY_STOPPING_"):
        return value.removeprefix("EARLY_STOPPING_").lower()
    return value


class FrontEnd:
    name = ""
    prefix = ""  # of the name of a decoding option in errors
    unknown: frozenset = frozenset()  # decoding options that it does not have under this name

    def call(self, server: HttpServer, call: Call) -> Answer:
        raise NotImplementedError


class Quintet(FrontEnd):
    prefix = "decoding."

    def __init__(self, stream: bool):
        self.name = "GenerateStream" if stream else "Generate"
        self.stream = stream

    def call(self, server: HttpServer, call: Call) -> Answer:
        options = {"api_key": call.key or None, "timeout_s": call.timeout_s}
        fields = {"model": call.model} if call.model else {}
        if call.priority:
            fields["priority"] = f"PRIORITY_{call.priority.upper()}"
        with server.client(call=fields, **options) as client:
            message = pb.DecodingOptions(**call.options)
            try:
                if not self.stream:
                    return Answer(text=client.generate(call.input, message).sequences[0].text)
                events = list(client.stream(call.input, message))
                streamed = "".join(event.chunk.text for event in events)
                whole = events[-1].complete.sequences[0].text
                assert whole.startswith(streamed)
                return Answer(text=whole)
            except grpc.RpcError as error:
                return answer_of(error)


def answer_of(error: grpc.RpcError) -> Answer:
    found = Failure.of(error)
    field = found.fields[0][0] if found.fields else ""
    return Answer(found.code, "", found.message, field, found.retry_after_s is not None)


class Kserve(FrontEnd):
    prefix = "parameters."
    # Outputs stand for these options.
    unknown = frozenset(
        {"return_text", "return_token_ids", "return_scores", "logprobs", "top_logprobs"}
    )

    def __init__(self, stream: bool):
        self.name = "ModelStreamInfer" if stream else "ModelInfer"
        self.stream = stream

    def call(self, server: HttpServer, call: Call) -> Answer:
        parameters = {}
        for name, value in call.options.items():
            value = plain(value)
            parameters[name] = json.dumps(value) if isinstance(value, list) else value
        if call.priority:
            parameters["priority"] = call.priority
        if self.stream:
            parameters["stream"] = True
        if isinstance(call.input, str):
            tensor = ("text_input", "BYTES", [1, 1], raw_strings(call.input.encode()))
        else:
            ids = b"".join(one.to_bytes(8, "little") for one in call.input)
            tensor = ("input_ids", "INT64", [1, len(call.input)], ids)
        message = request(
            tensor, wanted=["text_output"], parameters=parameters, model_name=call.model
        )
        metadata = (("authorization", f"Bearer {call.key}"),) if call.key else ()
        with grpc.insecure_channel(server.target) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            try:
                if not self.stream:
                    answer = stub.ModelInfer(message, timeout=call.timeout_s, metadata=metadata)
                    return Answer(text=text_of(answer))
                answers = stub.ModelStreamInfer(
                    iter([message]),
                    timeout=call.timeout_s,
                    metadata=(*metadata, ("triton_grpc_error", "true")),
                )
                return Answer(text="".join(text_of(one.infer_response) for one in answers))
            except grpc.RpcError as error:
                return answer_of(error)


def text_of(response) -> str:
    """The text_output of a ModelInferResponse with one sequence."""
    for output, raw in zip(response.outputs, response.raw_output_contents):
        if output.name == "text_output":
            return raw[4:].decode()
    return ""


class Http(FrontEnd):
    """A route of the HTTP API."""

    def __init__(self, path: str, stream: bool):
        self.name = path + (" stream" if stream else "")
        self.path = path
        self.stream = stream

    def body(self, call: Call, options: dict) -> dict:
        raise NotImplementedError

    def texts(self, body: bytes) -> str:
        raise NotImplementedError

    def call(self, server: HttpServer, call: Call) -> Answer:
        options = {name: plain(value) for name, value in call.options.items()}
        body = self.body(call, options)
        if call.model:
            body["model"] = call.model
        if call.priority:
            body["priority"] = call.priority
        headers = {"X_Request_Timeout": str(call.timeout_s)}
        if call.key:
            headers["Authorization"] = f"Bearer {call.key}"
        answer = server.post(self.path, body, **headers)
        data = events(answer.body) if self.stream and answer.status == 200 else None
        failed = next((one for one in data or () if "error" in one), None)
        if answer.status == 200 and failed is None:
            return Answer(text=self.texts(answer.body))
        error = (failed or answer.json())["error"]
        message = error["message"] if isinstance(error, dict) else error
        if failed is None:
            code = HTTP_CODES[answer.status]
        else:  # an error after the first event has no status of its own
            assert "deadline" in message, message
            code = Code.DEADLINE_EXCEEDED
        field = message.split(": ")[0] if code == Code.INVALID_ARGUMENT else ""
        return Answer(code, "", message, field, "Retry-After" in answer.headers)


def events(body: bytes) -> list[dict]:
    """The JSON of server-sent events."""
    lines = [line.removeprefix("data:").strip() for line in body.decode().split("\n\n")]
    return [json.loads(line) for line in lines if line.startswith("{")]


class Completions(Http):
    def __init__(self, stream: bool):
        super().__init__("/v1/completions", stream)

    def body(self, call: Call, options: dict) -> dict:
        return {"prompt": call.input, "stream": self.stream, **options}

    def texts(self, body: bytes) -> str:
        found = events(body) if self.stream else [json.loads(body)]
        return "".join(one["choices"][0]["text"] for one in found)


class Tgi(Http):
    prefix = "parameters."

    def __init__(self, stream: bool):
        super().__init__("/generate_stream" if stream else "/generate", stream)

    def body(self, call: Call, options: dict) -> dict:
        return {"inputs": call.input, "parameters": options}

    def texts(self, body: bytes) -> str:
        found = events(body)[-1] if self.stream else json.loads(body)
        return found["generated_text"]


FRONT_ENDS = [
    kind(stream) for kind in (Quintet, Kserve, Completions, Tgi) for stream in (False, True)
]
