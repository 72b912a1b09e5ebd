"""A server that speaks as much of the OpenAI protocol as a client needs, and says what it is told to say."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]


@dataclass(frozen=True)
class Raw:
    """A response, byte for byte."""

    body: bytes
    status: int = 200
    kind: str = "application/json"
    delay: float = 0.0
    cut: bool = False
    """Promise more bytes than come."""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Server:
    """What the server says and what it was asked."""

    answer: Callable[[Body], Any]
    """From a request to the answers' texts, or to a `Raw` response."""
    owner: str = "vllm"
    models: tuple[str, ...] = ("tiny",)
    window: int | None = None
    """Tokens that every model is said to read."""
    listed: Raw | None = None
    """The response to who asks for the models, instead of a list of `models`."""
    url: str = ""
    requests: list[Body] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    def respond(self, path: str, body: Body | None) -> Raw:
        """The response to a request."""
        if body is None and self.listed is not None:
            return self.listed
        if body is None:
            told = {"object": "model", "owned_by": self.owner, "max_model_len": self.window}
            listed = [{"id": name} | told for name in self.models]
            return Raw(json.dumps({"object": "list", "data": listed}).encode())
        self.requests.append(body)
        found = self.answer(body)
        return found if isinstance(found, Raw) else Raw(json.dumps(completion(found)).encode())


def completion(texts: list[str]) -> Body:
    """A chat completion."""
    choices = [
        {"index": n, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for n, text in enumerate(texts)
    ]
    return {"object": "chat.completion", "choices": choices, "usage": {"prompt_tokens": 11, "completion_tokens": 7}}


@contextmanager
def serving(answer: Callable[[Body], Any], port: int = 0, **settings: Any) -> Iterator[Server]:
    """Serve on a free port of this machine, or that one, while the context lasts."""
    server = Server(answer, **settings)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self._send(server.respond(self.path, None))

        def do_POST(self):
            length = int(self.headers["content-length"])
            server.keys.append(self.headers["authorization"])
            self._send(server.respond(self.path, json.loads(self.rfile.read(length))))

        def _send(self, raw: Raw) -> None:
            time.sleep(raw.delay)
            try:
                self.send_response(raw.status)
                for name, value in {"content-type": raw.kind, **raw.headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(raw.body) + 100 * raw.cut))
                self.end_headers()
                self.wfile.write(raw.body)
            except ConnectionError:
                pass  # the client went away

        def log_message(self, *args):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_port}/v1"
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
