"""A server that is started, asked and ended: each way in which one fails to do its part is a sentence, and nothing of it is left."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from vllm.dcu.verify.server import Server, ServerError, last_line, processes_of, running

# `vllm serve` in fifteen lines, with a child in its process group; FAULT names what it does wrong.
FAKE = """
import http.server, json, os, signal, subprocess, sys
fault = os.environ["FAULT"]
if fault == "ends": sys.exit("SomeError: no such option")
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
if fault == "deaf": signal.signal(signal.SIGTERM, signal.SIG_IGN)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.say(json.dumps({"data": [{"id": "m"}]}))
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        end = "" if fault == "cut" else "data: [DONE]"
        self.say('data: {"n": 1}\\n\\n' + end if asked.get("stream") else json.dumps(asked))
    def say(self, text):
        self.send_response({"sick": 503, "refuses": 400 if self.command == "POST" else 200}.get(fault, 200))
        self.end_headers()
        self.wfile.write(text.encode())
http.server.HTTPServer(("127.0.0.1", int(sys.argv[-1])), Answer).serve_forever()
"""


def serve(folder: Path, fault: str = "") -> AbstractContextManager[Server]:
    return running([sys.executable, "-c", FAKE], folder / "logs" / "log", {**os.environ, "FAULT": fault}, start=5.0, stop=0.5)


def test_a_server_is_asked_and_ends_with_its_children(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        assert server.complete("Hello", 3, logprobs=1)["max_tokens"] == 3
        assert (server.model, server.stream("Hello", 3), len(server.children())) == ("m", [{"n": 1}], 1)
        assert server.stop() == -15
    assert processes_of(server.process.pid) == []


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("ends", "the server ended with 1: SomeError: no such option"),
        ("sick", "the server was not healthy in time: "),
        ("refuses", "/v1/completions was answered with 400"),
        ("cut", "the stream ended with"),
        ("deaf", r"the server did not end within 0 s of SIGTERM"),
    ],
)
def test_what_a_server_does_wrong_is_said_with_its_log_and_nothing_is_left(tmp_path: Path, fault: str, says: str) -> None:
    seen: list[Server] = []

    def use() -> None:
        with serve(tmp_path, fault) as server:
            seen.append(server)
            server.stream("Hello", 3)
            server.stop()

    with pytest.raises(ServerError, match=says) as error:
        use()
    assert f"(see {tmp_path / 'logs' / 'log'})" in str(error.value)
    assert [processes_of(server.process.pid) for server in seen] == [[]] * len(seen)


def test_nothing_is_left_when_the_caller_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the caller's own"), serve(tmp_path) as server:
        raise RuntimeError("the caller's own fault")
    assert processes_of(server.process.pid) == []


def test_a_log_without_a_word_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\n")
    assert last_line(tmp_path / "log").startswith("it wrote nothing")
