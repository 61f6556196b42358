"""Helpers of kserve_*_test.py: requests of KServe's gRPC protocol with tritonclient's messages."""

import contextlib
import queue
import struct

import grpc
import numpy
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc


def texts(*values, name: str = "text_input", flat: bool = False) -> triton.InferInput:
    """A BYTES tensor [n, 1], or [n] if `flat`, of str or bytes."""
    array = numpy.array(
        [value.encode() if isinstance(value, str) else value for value in values], dtype=object
    )
    return tensor(name, array if flat else array.reshape(-1, 1))


def tensor(name: str, values, dtype=None) -> triton.InferInput:
    array = numpy.asarray(values, dtype=dtype)
    kinds = {"object": "BYTES", "int32": "INT32", "int64": "INT64", "bool": "BOOL"}
    made = triton.InferInput(name, list(array.shape), kinds[array.dtype.name])
    made.set_data_from_numpy(array)
    return made


def outputs(*names: str) -> list[triton.InferRequestedOutput]:
    return [triton.InferRequestedOutput(name) for name in names]


def parameter(value) -> service_pb2.InferParameter:
    if isinstance(value, bool):
        return service_pb2.InferParameter(bool_param=value)
    if isinstance(value, int):
        return service_pb2.InferParameter(int64_param=value)
    if isinstance(value, float):
        return service_pb2.InferParameter(double_param=value)
    return service_pb2.InferParameter(string_param=value)


def raw_strings(*values: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def request(
    *inputs: tuple, wanted=(), parameters=None, raw=True, **fields
) -> service_pb2.ModelInferRequest:
    """A message from (name, datatype, shape, contents).

    Contents: bytes if `raw`, otherwise a dictionary with the fields of InferTensorContents.
    """
    message = service_pb2.ModelInferRequest(**fields)
    for name, datatype, shape, contents in inputs:
        made = message.inputs.add(name=name, datatype=datatype, shape=shape)
        if raw:
            message.raw_input_contents.append(contents)
        else:
            made.contents.CopyFrom(service_pb2.InferTensorContents(**contents))
    for name in wanted:
        message.outputs.add(name=name)
    for name, value in (parameters or {}).items():
        message.parameters[name].CopyFrom(parameter(value))
    return message


def text_request(*values: str, **arguments) -> service_pb2.ModelInferRequest:
    contents = raw_strings(*(value.encode() for value in values))
    return request(("text_input", "BYTES", [len(values), 1], contents), **arguments)


@contextlib.contextmanager
def stub_of(server):
    with grpc.insecure_channel(server.target) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


class Stream:
    """A ModelStreamInfer call of tritonclient. next() returns a response as (result, error)."""

    def __init__(self, client: triton.InferenceServerClient, **arguments):
        self.client = client
        self._responses: queue.Queue = queue.Queue()
        client.start_stream(
            callback=lambda result, error: self._responses.put((result, error)), **arguments
        )

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_) -> None:
        self.client.stop_stream()

    def send(self, inputs, model: str = "", **arguments) -> None:
        self.client.async_stream_infer(model, inputs, **arguments)

    def next(self):
        return self._responses.get(timeout=60)

    def until_final(self) -> list:
        """Returns the responses to one request, up to the one with triton_final_response."""
        results = []
        while True:
            result, error = self.next()
            assert error is None, error
            results.append(result)
            if is_final(result):
                return results


def is_final(result) -> bool:
    return result.get_response().parameters["triton_final_response"].bool_param
