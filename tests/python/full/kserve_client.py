#!/usr/bin/env python3
"""Tests the server with the gRPC client of the package kserve (tools/try_kserve.sh runs this).

Unary calls, batches, errors, deadlines, API keys and TLS; texts equal those of quintet.v1.
"""

import asyncio
import hashlib
import pathlib
import subprocess
import sys
import tempfile

import grpc
import numpy
from kserve import InferenceGRPCClient, InferInput, InferRequest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from server_process import G2P, Server, eventually, words  # noqa: E402

Code = grpc.StatusCode


def request(texts: list[str], raw: bool, **parameters) -> InferRequest:
    tensor = InferInput(name="text_input", shape=[len(texts), 1], datatype="BYTES")
    values = numpy.array([[text.encode()] for text in texts], dtype=object)
    tensor.set_data_from_numpy(values, binary_data=raw)
    return InferRequest(model_name="g2p", infer_inputs=[tensor], parameters=parameters)


async def failure(call) -> grpc.StatusCode:
    try:
        await call
    except grpc.RpcError as error:
        return error.code()
    raise AssertionError("expected a failure")


async def check_calls(server: Server) -> None:
    known = words(8)
    with server.client() as quintet:
        expected = [quintet.generate(word, {"num_beams": 3}).sequences[0].text for word in known]
    async with InferenceGRPCClient(server.target) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("g2p")
        for raw in (False, True):
            answer = await client.infer(request(known, raw, num_beams=3))
            assert answer.model_name == "g2p"
            texts = answer.outputs[0].as_numpy()
            assert texts.shape == (8, 1)
            assert [bytes(text).decode() for text in texts[:, 0]] == expected
        ids = InferInput(name="input_ids", shape=[1, 3], datatype="INT64")
        ids.set_data_from_numpy(numpy.array([[5, 6, 1]], "int64"), binary_data=False)
        answer = await client.infer(InferRequest(model_name="g2p", infer_inputs=[ids]))
        assert [output.name for output in answer.outputs] == ["output_ids", "sequence_length"]
        assert await failure(client.infer(request(["a"], True, num_beams=99))) == (
            Code.INVALID_ARGUMENT
        )
        endless = request(["a"], True, ignore_eos=True, max_new_tokens=4000)
        assert await failure(client.infer(endless, timeout=0.2)) == Code.DEADLINE_EXCEEDED
        running = "quintet_requests_running"
        assert eventually(lambda: server.metric(running) == 0)
        task = asyncio.create_task(client.infer(endless))
        assert await asyncio.to_thread(eventually, lambda: server.metric(running) == 1)
        task.cancel()
        assert await asyncio.to_thread(eventually, lambda: server.metric(running) == 0)
        finished = "quintet_requests_finished_total"
        # The client also cancels when its deadline passes.
        assert sum(server.metric(finished, reason=r) for r in ("cancelled", "deadline")) == 2
        answers = await asyncio.gather(*(client.infer(request([w], True)) for w in known))
        assert len(answers) == 8


async def check_key_and_tls(folder: pathlib.Path) -> None:
    keys = folder / "keys"
    keys.touch(mode=0o600)
    keys.write_text(hashlib.sha256(b"right").hexdigest() + "\n")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
            *("ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    certificate = folder / "cert.pem"
    files = {"tls_cert": certificate, "tls_key": folder / "key.pem", "api_key_file": keys}
    with Server(G2P, **files) as server:
        target = f"localhost:{server.target.split(':')[1]}"
        credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
        async with InferenceGRPCClient(target, use_ssl=True, creds=credentials) as client:
            assert await client.is_server_ready()
            assert await failure(client.infer(request(["a"], True))) == Code.UNAUTHENTICATED
            wrong = (("authorization", "Bearer wrong"),)
            answer = client.infer(request(["a"], True), headers=wrong)
            assert await failure(answer) == Code.PERMISSION_DENIED
            headers = (("authorization", "Bearer right"),)
            answer = await client.infer(request(["wagner"], True), headers=headers)
            assert answer.outputs[0].as_numpy()[0, 0] == b"W AE1 G N ER0"


def main() -> None:
    with Server(G2P) as server:
        asyncio.run(check_calls(server))
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(check_key_and_tls(pathlib.Path(folder)))
    print("kserve: all checks passed")


if __name__ == "__main__":
    main()
