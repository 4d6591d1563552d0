"""An HTTP proxy before an S3 server which loses one answer: the server has done it, its client does not know."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class LosingProxy(ThreadingHTTPServer):
    """`conditional_puts` are the statuses of the server's answers to PUTs with If-None-Match; the first one is lost."""

    daemon_threads = True

    def __init__(self, server: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.server_at = urlsplit(server).netloc
        self.conditional_puts: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _pass_on(self) -> None:
        assert isinstance(self.server, LosingProxy)
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        there = http.client.HTTPConnection(self.server.server_at, timeout=60)
        there.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() != "expect":  # answered here
                there.putheader(name, value)
        there.endheaders(data)
        answer = there.getresponse()
        body = answer.read()
        there.close()
        if "If-None-Match" in self.headers:
            self.server.conditional_puts.append(answer.status)
            if len(self.server.conditional_puts) == 1:
                self.close_connection = True
                return
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in {"transfer-encoding", "content-length", "connection"}:
                self.send_header(name, value)
        reported = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", reported or str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = _pass_on  # noqa: N815 - the names that http.server calls


@contextmanager
def losing_proxy(server: str) -> Iterator[LosingProxy]:
    """A proxy before the server at this URL."""
    with LosingProxy(server) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
