"""HTTP/2 frames as bytes. For tests of misuse that HTTP/2 libraries do not allow (RFC 9113, RFC
7541)."""

import select
import socket
import struct
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4
GENERATE = "/quintet.v1.Inference/Generate"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
    )


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
    """Encodes header fields as literals without indexing or compression, which are valid whatever
    the HPACK table contains."""
    return b"".join(
        b"\0" + _string(name.encode()) + _string(value.encode()) for name, value in fields
    )


def request_fields(
    path: str = GENERATE, *, scheme: str = "http", te: str = "trailers", more=()
) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", scheme),
        (":path", path),
        (":authority", "localhost"),
        ("te", te),
        ("content-type", "application/grpc"),
        *more,
    ]


def headers_frames(stream: int, block: bytes, flags: int = 0) -> bytes:
    """Returns one HEADERS frame and as many CONTINUATION frames as the header block needs."""
    parts = [block[i : i + 16384] for i in range(0, len(block), 16384)] or [b""]
    frames = b""
    for number, part in enumerate(parts):
        last = END_HEADERS if number == len(parts) - 1 else 0
        frames += frame(
            HEADERS if number == 0 else CONTINUATION,
            (flags if number == 0 else 0) | last,
            stream,
            part,
        )
    return frames


def message_frame(stream: int, message: bytes) -> bytes:
    """Returns a DATA frame that contains one gRPC message and ends the stream."""
    return frame(DATA, END_STREAM, stream, b"\0" + struct.pack(">I", len(message)) + message)


def reset_frame(stream: int) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">I", 8))  # CANCEL


def connect(port: int, timeout_s: float = 5) -> socket.socket:
    """Opens a connection and sends the HTTP/2 preface."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
    connection.sendall(PREFACE + frame(SETTINGS, 0, 0))
    return connection


def drain(connection: socket.socket) -> bool:
    """Discards the bytes that have arrived, without waiting. Returns False if the other side has
    closed the connection."""
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


class Peer:
    """A client connection that respects the server's flow control and sends the replies that HTTP/2
    requires."""

    def __init__(self, port: int, initial_window: int | None = None, timeout_s: float = 20):
        self.socket = connect(port, timeout_s)
        self.received: list[tuple[int, int, int, bytes]] = []  # kind, flags, stream, payload
        self._window, self._stream_window, self._windows = 65535, 65535, {}
        self._buffer = b""
        if initial_window is not None:
            self.socket.sendall(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, initial_window)))

    def close(self) -> None:
        self.socket.close()

    def open(self, stream: int, fields) -> None:
        self.socket.sendall(headers_frames(stream, header_block(fields)))

    def pump(self, wait_s: float = 0.0) -> bool:
        """Waits up to `wait_s` seconds for frames and processes them. Returns False if the server
        has closed the connection."""
        if not select.select([self.socket], [], [], wait_s)[0]:
            return True
        try:
            data = self.socket.recv(1 << 16)
        except OSError:
            return False
        if not data:
            return False
        self._buffer += data
        while len(self._buffer) >= 9:
            length = int.from_bytes(self._buffer[:3], "big")
            if len(self._buffer) < 9 + length:
                break
            kind, flags, stream = (
                self._buffer[3],
                self._buffer[4],
                int.from_bytes(self._buffer[5:9], "big"),
            )
            payload, self._buffer = self._buffer[9 : 9 + length], self._buffer[9 + length :]
            self._take(kind, flags, stream, payload)
        return True

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload, "big")
        elif kind == WINDOW_UPDATE:
            self._windows[stream] = self._windows.get(stream, 0) + int.from_bytes(payload, "big")
        elif kind == SETTINGS and not flags & 1:
            for at in range(0, len(payload), 6):
                setting, value = struct.unpack(">HI", payload[at : at + 6])
                if setting == 4:
                    self._stream_window = value
            self.socket.sendall(frame(SETTINGS, 1, 0))
        elif kind == PING and not flags & 1:
            self.socket.sendall(frame(PING, 1, 0, payload))
        else:
            self.received.append((kind, flags, stream, payload))

    def ended(self, stream: int) -> bool:
        """Returns whether the server has ended or reset the stream."""
        return any(
            kind == RST_STREAM or flags & END_STREAM
            for kind, flags, of, _ in self.received
            if of == stream
        )

    def send(self, stream: int, data: bytes, last: bool = False, times: int = 1):
        """Sends `data` `times` times, as fast as the flow-control windows allow, and stops if the
        stream ends. Yields the number of bytes sent so far."""
        sent, total = 0, len(data) * times
        while sent < total and not self.ended(stream):
            room = min(
                16384,
                self._window,
                self._stream_window + self._windows.get(stream, 0),
                total - sent,
            )
            if room > 0:
                at = sent % len(data)
                part = data[at : at + room]
                sent += len(part)
                self._window -= len(part)
                self._windows[stream] = self._windows.get(stream, 0) - len(part)
                try:
                    self.socket.sendall(
                        frame(DATA, END_STREAM if last and sent == total else 0, stream, part)
                    )
                except OSError:
                    return
                yield sent
            if not self.pump(0.0 if room > 0 else 0.2):
                return

    def answer(self, stream: int, timeout_s: float = 20) -> bytes:
        """Waits for the end of the stream and returns the payloads of its frames. Returns b"reset"
        if the server reset the stream before any payload, and b"closed" if the server closed the
        connection."""
        end = time.monotonic() + timeout_s
        while not self.ended(stream):
            if time.monotonic() > end:
                raise TimeoutError(f"stream {stream} does not end")
            if not self.pump(0.2):
                return b"closed"
        parts = [
            payload
            for kind, _, of, payload in self.received
            if of == stream and kind in (HEADERS, DATA, CONTINUATION)
        ]
        return b"".join(parts) or b"reset"
