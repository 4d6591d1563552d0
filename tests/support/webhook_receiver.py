"""A receiver of webhooks: a real HTTP server that answers as it is reported, and keeps what it was sent."""

import json
import ssl
import threading
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: In place of a status: no answer until the receiver is released.
HANG = 0


@dataclass
class Post:
    """A message that came: its path, headers in lower case, and body."""

    path: str
    headers: dict[str, str]
    body: bytes
    status: int = 0
    alert: dict[str, Any] = field(default_factory=dict)

    @property
    def what(self) -> tuple[str, str]:
        """The incident's number, and firing or resolved."""
        return self.alert["labels"]["incident"], self.alert["status"]


class Receiver:
    """Listens on a port of its own. `answers` are statuses (or `(status, headers)`) of the next posts; then 200."""

    def __init__(self, context: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.answers: deque[Any] = deque()
        self.posts: list[Post] = []
        self.released = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                receiver._take(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        scheme = "http"
        if context is not None:
            scheme = "https"
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        self.url = f"{scheme}://127.0.0.1:{self.port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def _take(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        answer = self.answers.popleft() if self.answers else 200
        status, headers = answer if isinstance(answer, tuple) else (answer, {})
        post = Post(handler.path, {k.lower(): v for k, v in handler.headers.items()}, body, status)
        post.alert = json.loads(body)["alerts"][0]
        self.posts.append(post)
        if status == HANG:
            self.released.wait()
            status = 500
        try:
            handler.send_response(status)
            for name, value in headers.items():
                handler.send_header(name, value)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
        except OSError:
            handler.close_connection = True  # who asked has gone

    def taken(self) -> list[tuple[str, str]]:
        """What was answered with success, in order."""
        return [post.what for post in self.posts if 200 <= post.status < 300]

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
