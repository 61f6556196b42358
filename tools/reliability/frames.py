"""HTTP/2 frames as bytes, for clients that real libraries would not let us be (RFC 9113, RFC 7541)."""
import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4
GENERATE = "/quintet.v1.Inference/Generate"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _string(text: bytes) -> bytes:
    length, rest = len(text), b""
    if length < 127:
        return bytes((length,)) + text
    length -= 127
    while length >= 128:
        rest += bytes((length % 128 + 128,))
        length //= 128
    return b"\x7f" + rest + bytes((length,)) + text


def header_block(fields) -> bytes:
    """Literals without indexing, not compressed: valid whatever the other side remembers."""
    return b"".join(b"\0" + _string(name.encode()) + _string(value.encode()) for name, value in fields)


def request_fields(path: str = GENERATE, *, scheme: str = "http", te: str = "trailers", more=()) -> list[tuple[str, str]]:
    return [(":method", "POST"), (":scheme", scheme), (":path", path), (":authority", "localhost"), ("te", te),
            ("content-type", "application/grpc"), *more]


def headers_frames(stream: int, block: bytes, flags: int = 0) -> bytes:
    """HEADERS and as many CONTINUATION frames as the block needs."""
    parts = [block[i:i + 16384] for i in range(0, len(block), 16384)] or [b""]
    frames = b""
    for number, part in enumerate(parts):
        last = END_HEADERS if number == len(parts) - 1 else 0
        frames += frame(HEADERS if number == 0 else CONTINUATION, (flags if number == 0 else 0) | last, stream, part)
    return frames


def message_frame(stream: int, message: bytes) -> bytes:
    """A gRPC message as the one DATA frame of a stream."""
    return frame(DATA, END_STREAM, stream, b"\0" + struct.pack(">I", len(message)) + message)


def reset_frame(stream: int) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">I", 8))  # CANCEL


def connect(port: int, timeout_s: float = 5) -> socket.socket:
    """A connection that has begun HTTP/2."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
    connection.sendall(PREFACE + frame(SETTINGS, 0, 0))
    return connection


def drain(connection: socket.socket) -> bool:
    """Takes what has come without waiting. False: the other side has closed."""
    connection.setblocking(False)
    try:
        while True:
            if not connection.recv(1 << 16):
                return False
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        connection.settimeout(5)
