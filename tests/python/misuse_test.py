"""Tests that no client, with or without a key, can crash the server or exhaust its resources.

frames.py writes HTTP/2 frames directly, because a gRPC library does not send invalid ones.
"""

import gzip
import hashlib
import os
import pathlib
import struct
import sys
import threading
import time

import grpc
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "reliability"))

import frames  # noqa: E402
from quintet.wire import SERVICE as NAME, Stub, health, pb  # noqa: E402
from server_process import G2P, Server, eventually  # noqa: E402

SERVICE = f"/{NAME}/"
MIB = 1 << 20


def stub_of(server: Server, **options) -> Stub:
    """Returns a stub with its own connection."""
    pairs = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_send_message_length", -1),
        *options.items(),
    ]
    return Stub(grpc.insecure_channel(server.target, options=pairs))


def code_of(call) -> grpc.StatusCode:
    try:
        call()
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def port_of(server: Server) -> int:
    return int(server.target.split(":")[1])


def serves(server: Server) -> bool:
    with server.client() as client:
        return client.generate("phoneme", {"num_beams": 4}).sequences[0].text == "F OW1 N IY0 M"


def test_streams_of_items_that_fail(server):
    """Items of a stream fail while more arrive. This once caused a use after free in the server."""

    def bad_items():
        for number in range(40):
            item = pb.EncodeStreamRequest(item_id=1)
            if number % 2:
                item.input.token_ids.ids.append(999999)
            yield item

    codes = []

    def one_client():
        stub = stub_of(server)
        for _ in range(300):
            codes.append(code_of(lambda: list(stub.EncodeStream(bad_items()))))

    threads = [threading.Thread(target=one_client) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(codes) == {grpc.StatusCode.INVALID_ARGUMENT} and len(codes) == 1200
    assert serves(server)
    assert eventually(lambda: server.metric("quintet_open_calls") == 0)


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_messages_are_refused_before_they_are_inflated(server, compression):
    before = server.resident_bytes()
    request = pb.TokenizeRequest(text="a" * (256 * MIB))  # about 256 KiB compressed
    stub = stub_of(server)
    assert (
        code_of(lambda: stub.Tokenize(request, compression=compression, timeout=60))
        == grpc.StatusCode.UNIMPLEMENTED
    )
    assert server.resident_bytes() < before + 32 * MIB
    assert serves(server)


def test_a_compressed_message_without_the_header_that_says_so(server):
    peer = frames.Peer(port_of(server))
    message = gzip.compress(pb.TokenizeRequest(text="a" * 1000).SerializeToString())
    peer.open(1, frames.request_fields(SERVICE + "Tokenize"))
    for _ in peer.send(1, b"\1" + struct.pack(">I", len(message)) + message, last=True):
        pass
    assert b"grpc-status\x013" in peer.answer(1)  # INVALID_ARGUMENT: cannot be parsed
    assert serves(server)


def test_a_message_that_never_ends(server):
    """gRPC checks the size of a message only when it has received the whole message. Until then its
    resource quota limits the buffers."""
    before = server.resident_bytes()
    peer = frames.Peer(port_of(server))
    peer.open(1, frames.request_fields(SERVICE + "Tokenize"))
    list(peer.send(1, b"\0" + struct.pack(">I", 1 << 30)))
    sent, peak = 0, 0
    for sent in peer.send(1, b"x" * 16384, times=600 * 64):
        if sent % MIB == 0:
            peak = max(peak, server.resident_bytes())
    assert sent < 600 * MIB, "the stream was not cut off"
    assert peak < before + 350 * MIB
    assert serves(server)


def test_a_first_message_that_is_not_completed(server):
    """An incomplete first message occupies an RPC for at most ten seconds."""
    peer = frames.Peer(port_of(server))
    peer.open(1, frames.request_fields())
    list(peer.send(1, b"\0\0\0\1\0half"))
    assert eventually(lambda: server.metric("quintet_open_calls") == 1)
    assert b"no message in time" in peer.answer(1)
    assert eventually(lambda: server.metric("quintet_open_calls") == 0)


def test_health_watches_are_limited(server):
    """One connection may have 256 health watches (calls of the streaming RPC Watch) open at once.
    Further ones are rejected with RESOURCE_EXHAUSTED, so the client may retry them."""
    channel = grpc.insecure_channel(server.target, options=[("grpc.use_local_subchannel_pool", 1)])
    stub = Stub(channel, "grpc.health.v1.Health")
    watches = [stub.Watch(health.HealthCheckRequest()) for _ in range(400)]
    assert eventually(lambda: sum(watch.done() for watch in watches) == 144)
    assert {watch.code() for watch in watches if watch.done()} == {
        grpc.StatusCode.RESOURCE_EXHAUSTED
    }
    assert server.metric("quintet_open_calls") == 256
    for watch in watches:
        watch.cancel()
    assert eventually(lambda: server.metric("quintet_open_calls") == 0)
    assert (
        next(stub.Watch(health.HealthCheckRequest())).status == health.HealthCheckResponse.SERVING
    )


def test_idle_streams_are_limited(server):
    """20,000 streams without a message.

    Streams above the limits are rejected; the others time out within seconds.
    """
    peers = []

    def open_streams(connections: int, of_each: int) -> None:
        for _ in range(connections):
            peers.append(frames.Peer(port_of(server)))
            for stream in range(1, 2 * of_each, 2):
                peers[-1].open(stream, frames.request_fields(SERVICE + "EncodeStream"))
                peers[-1].pump()

    open_streams(2, 300)
    # 256 per connection.
    assert eventually(lambda: server.metric("quintet_open_calls") == 512, 5)
    open_streams(3, 300)
    assert eventually(lambda: server.metric("quintet_open_calls") == 1024, 5)
    open_streams(18, 1000)
    assert server.metric("quintet_open_calls") <= 1024
    assert serves(server)
    assert eventually(lambda: server.metric("quintet_open_calls") == 0, 30)
    for peer in peers:
        peer.close()


def test_unread_answers_are_bounded(server):
    """A client with an HTTP/2 flow-control window of 0 reads no response.

    The unread responses stay within the memory budget and are dropped after at most 30 s.
    """
    before = server.resident_bytes()
    peer = frames.Peer(port_of(server), initial_window=0)
    message = pb.TokenizeRequest(text="a b " * (MIB // 4)).SerializeToString()
    for stream in range(1, 41, 2):
        peer.open(stream, frames.request_fields(SERVICE + "Tokenize"))
        list(peer.send(stream, b"\0" + struct.pack(">I", len(message)) + message, last=True))
    peak, end = 0, time.monotonic() + 60
    while time.monotonic() < end and server.metric("quintet_open_calls") > 0:
        peak = max(peak, server.resident_bytes())
        time.sleep(0.2)
    assert server.metric("quintet_open_calls") == 0, "unread answers are held for ever"
    assert peak < before + 700 * MIB  # 2.4 GiB without the budget
    assert serves(server)


PATHS = [
    "/quintet.v1.Inference/Generate",
    "/quintet.v1.Inference/GetModelInfo",
    "/quintet.v1.Inference/ListModels",
    "//quintet.v1.Inference/Generate",
    "/quintet.v1.Inference//Generate",
    "/quintet.v1.Inference/Generate/",
    "/quintet.v1.Inference/generate",
    "/QUINTET.V1.INFERENCE/GENERATE",
    "/quintet.v1.Inference/Generate?key=1",
    "/quintet.v1.Inference/%47enerate",
    "/quintet.v1.Inference/../quintet.v1.Inference/Generate",
    "http://localhost/quintet.v1.Inference/Generate",
    "quintet.v1.Inference/Generate",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "/grpc.channelz.v1.Channelz/GetServers",
    "/inference.GRPCInferenceService/ModelInfer",
    "/nobody.Knows/This",
    "/",
    "",
]
AUTHORITIES = [
    "localhost",
    "LOCALHOST:1",
    "quintet.example",
    "user@localhost",
    "127.0.0.1:80",
    "[::1]",
    "a" * 300,
]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.touch(mode=0o600)
    file.write_text(hashlib.sha256(b"open sesame").hexdigest() + "\n")
    os.chmod(file, 0o600)
    with Server(G2P, api_key_file=file) as running:
        yield running


def answer_to(server: Server, fields) -> bytes:
    peer = frames.Peer(port_of(server))
    peer.open(1, fields)
    answer = peer.answer(1)
    peer.close()
    return answer


@pytest.mark.parametrize("path", PATHS)
def test_no_path_is_answered_without_a_key(guarded, path):
    """Calls without an API key get the same answer for all RPC paths. The answer therefore does not
    reveal which paths exist."""
    answer = answer_to(guarded, frames.request_fields(path))
    assert b"grpc-status\x0216" in answer or answer in (b"reset", b"closed"), answer
    assert b"does not implement" not in answer


@pytest.mark.parametrize("authority", AUTHORITIES)
def test_no_authority_replaces_a_key(guarded, authority):
    fields = [
        (name, authority if name == ":authority" else value)
        for name, value in frames.request_fields()
    ]
    answer = answer_to(guarded, fields)
    assert b"grpc-status\x0216" in answer or answer in (b"reset", b"closed"), answer


def test_a_stream_needs_its_key_when_it_opens(guarded):
    """A stream without a key is rejected before the client sends a message."""
    opened = threading.Event()

    def items():
        opened.wait(30)
        return iter(())

    call = stub_of(guarded).EncodeStream(items())
    assert eventually(call.done)
    assert call.code() == grpc.StatusCode.UNAUTHENTICATED
    opened.set()
    assert guarded.metric("quintet_open_calls") == 0
