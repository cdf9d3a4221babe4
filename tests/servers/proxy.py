"""A proxy before an HTTP server, that loses, delays, cuts and falsifies answers when it is told to."""

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from servers.programs import free_port


@dataclass(frozen=True)
class Fault:
    """What to do with one request.

    ``is_forwarded``: the server gets it, whatever is answered. ``status``: answer this instead; None
    answers what the server said; 0 answers nothing and closes. ``delay_s``: before the answer.
    ``is_cut``: close in the middle of the answer.
    """

    status: int | None = None
    is_forwarded: bool = True
    delay_s: float = 0.0
    is_cut: bool = False


# Method, path with query, and how many requests came before it.
Decide = Callable[[str, str, int], Fault | None]


class Proxy:
    """Between a client and the server at ``port``; ``decide`` may be changed at any time."""

    def __init__(self, port: int) -> None:
        self.decide: Decide = lambda method, path, number: None
        self.requests = 0
        self._lock = threading.Lock()
        proxy = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    while proxy._serve_one(self.request, port):
                        pass

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            block_on_close = False
            allow_reuse_address = True

        self.port = free_port()
        self._server = Server(("127.0.0.1", self.port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve_one(self, client: socket.socket, port: int) -> bool:
        request = _read_message(client, is_answer=False)
        if not request:
            return False
        method, path, _ = request.split(b"\r\n", 1)[0].decode().split(" ", 2)
        with self._lock:
            number, self.requests = self.requests, self.requests + 1
        fault = self.decide(method, path, number) or Fault()
        answer = b""
        if fault.is_forwarded:
            with socket.create_connection(("127.0.0.1", port), 30) as server:
                server.sendall(request)
                answer = _read_message(server, is_answer=True, is_head=method == "HEAD")
        if fault.delay_s:
            time.sleep(fault.delay_s)  # noqa: TID251 - a slow network
        if fault.status == 0:
            return False
        if fault.status is not None:
            body = b"<Error><Code>Tested</Code></Error>"
            answer = b"HTTP/1.1 %d Tested\r\nContent-Length: %d\r\n\r\n%s" % (
                fault.status,
                len(body),
                body,
            )
        if fault.is_cut:
            client.sendall(answer[: len(answer) - max(1, len(answer) // 4)])
            return False
        client.sendall(answer)
        return True


def _read_message(stream: socket.socket, *, is_answer: bool, is_head: bool = False) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        more = stream.recv(65536)
        if not more:
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    headers = {}
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip()
    if is_head or (is_answer and lines[0].split()[1] in (b"204", b"304")):
        return data
    if headers.get(b"transfer-encoding") == b"chunked":
        while not body.endswith(b"0\r\n\r\n"):
            body += stream.recv(65536)
    else:
        size = int(headers.get(b"content-length", b"0"))
        while len(body) < size:
            more = stream.recv(65536)
            if not more:
                break
            body += more
    return head + b"\r\n\r\n" + body
