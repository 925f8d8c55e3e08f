"""A server of a few read-only pages on the loopback interface, for the browser of the user who started it.

Other users of the machine can reach the loopback interface, and a page on the web can make the user's browser send requests to
it. So each address contains a random token, which other users and pages do not know; a request whose Host is another name is
refused, which also stops names that an attacker lets point to 127.0.0.1 (DNS rebinding); and there are no other addresses, no
other methods, and no files.
"""

from __future__ import annotations

import logging
import secrets
import sys
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, NamedTuple

from perron.errors import PerronError

LOOPBACK = "127.0.0.1"
HTTP = 80  # the port that browsers leave out
SILENCE = 10.0  # seconds after which a connection without a request is closed
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
NOTHING = "default-src 'none'; frame-ancestors 'none'"  # the Content-Security-Policy of what is no page

log = logging.getLogger("perron")


class Answer(NamedTuple):
    """The content of a page, its type, and its Content-Security-Policy."""

    content: bytes
    kind: str
    policy: str = NOTHING


class PageServer(ThreadingHTTPServer):
    """Serves pages below http://127.0.0.1:PORT/TOKEN/.

    Args:
        pages: for each name below the token, a function that returns the answer; a `PerronError` is answered by its message.
        port: the port; 0 for any that is free.
    """

    def __init__(self, pages: Mapping[str, Callable[[], Answer]], port: int = 0) -> None:
        self.pages, self.token = pages, secrets.token_urlsafe(24)
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise PerronError(f"Cannot listen on port {port} of {LOOPBACK}: {reason}. Choose another port.") from None
        names = (LOOPBACK, "localhost")
        self.hosts = {f"{name}:{self.server_port}" for name in names} | (
            {*names} if self.server_port == HTTP else set()
        )

    @property
    def address(self) -> str:
        """The address of the first page."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/"

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer also looks up the name of the host, which can take seconds
        self.server_name, self.server_port = LOOPBACK, self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        if not isinstance(error := sys.exception(), OSError):  # those are readers that have gone
            log.warning("A request to perron watch --web failed: %s: %s", type(error).__name__, error)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET for the pages of the server, and refuses everything else."""

    server: PageServer
    timeout = SILENCE

    def parse_request(self) -> bool:
        """Refuse other hosts, methods and paths before anything else happens."""
        if not super().parse_request():
            return False
        hosts = self.headers.get_all("Host") or []
        start, _, rest = self.path.partition("/")
        token, slash, page = rest.partition("/")
        known = secrets.compare_digest(token.encode("latin-1", "replace"), self.server.token.encode())
        if len(hosts) != 1 or hosts[0].lower() not in self.server.hosts:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        elif self.command != "GET":
            self.send_error(HTTPStatus.METHOD_NOT_ALLOWED)
        elif start or not known or not slash or page not in self.server.pages:
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self._page = page
            return True
        return False

    def do_GET(self) -> None:
        """Answer with a page."""
        try:
            answer = self.server.pages[self._page]()
        except PerronError as error:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, Answer(f"{error}\n".encode(), "text/plain"))
        else:
            self._send(HTTPStatus.OK, answer)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        status = HTTPStatus(code)
        self.close_connection = True
        self._send(status, Answer(f"{status.value} {status.phrase}\n".encode(), "text/plain"))

    def _send(self, status: HTTPStatus, answer: Answer) -> None:
        self.send_response(status)
        fields = {"Content-Type": f"{answer.kind}; charset=utf-8", "Content-Length": str(len(answer.content))}
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            fields["Allow"] = "GET"
        for name, value in (fields | HEADERS | {"Content-Security-Policy": answer.policy}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.content)

    def version_string(self) -> str:
        return "perron"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        """Print nothing: the paths contain the token."""
