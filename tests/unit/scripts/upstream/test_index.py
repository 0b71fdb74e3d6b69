"""Our own download goes to the index as pip does: trusted host, proxy, certificate."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.common import errors
from scripts.upstream import index

# Of this test alone: "localhost", signed by itself, valid until 2126.
KEY = """-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgJu2kbdhylcsuXB3R
7Rku4zZFwjcLiDHamW/l82q6FFGhRANCAAQ/rTygZP1DwUtebOGLG/88AOIR1HKo
92sk6q8Hfx2PH172KkhEdX5ExA87kK4FcpU4BXJuJ6A7lZQ1fb6BfAli
-----END PRIVATE KEY-----
"""
CERTIFICATE = """-----BEGIN CERTIFICATE-----
MIIBlTCCATugAwIBAgIUJp47lv4cXM3vZ52SAW+lVm0O6EswCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEzMDIxMzQwOVoYDzIxMjYxMTA2
MjEzNDA5WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAQ/rTygZP1DwUtebOGLG/88AOIR1HKo92sk6q8Hfx2PH172KkhEdX5E
xA87kK4FcpU4BXJuJ6A7lZQ1fb6BfAlio2kwZzAdBgNVHQ4EFgQUJCOYJkXiSU9L
x7QNLfBursry3bMwHwYDVR0jBBgwFoAUJCOYJkXiSU9Lx7QNLfBursry3bMwDwYD
VR0TAQH/BAUwAwEB/zAUBgNVHREEDTALgglsb2NhbGhvc3QwCgYIKoZIzj0EAwID
SAAwRQIhAN/YgTxCmy5u61CM2XWtMExkyjQgl+DmmOR0VKil98YyAiAEsi3iwAhx
dD/rckNB4Lc9WjiuGsZZx3yow7f6RzJ1Dg==
-----END CERTIFICATE-----
"""
PAGE = {
    "meta": {"api-version": "1.1"}, "name": "tiny", "versions": ["1"],
    "files": [{"filename": "tiny-1.tar.gz", "url": "tiny-1.tar.gz", "hashes": {"sha256": "0" * 64}, "size": 3}],
}  # fmt: skip


class Index(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps(PAGE).encode()
        self.send_response(200 if self.path.endswith("/simple/tiny/") else 404)
        self.send_header("Content-Type", "application/vnd.pypi.simple.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[bool], int]]:
    servers = []

    def start(tls: bool) -> int:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
        if tls:
            (tmp_path / "both.pem").write_text(KEY + CERTIFICATE)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tmp_path / "both.pem")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        servers.append((server, thread))
        return server.server_port

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    for name in (
        "PIP_CERT",
        "PIP_FIND_LINKS",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "NO_PROXY",
        "no_proxy",
    ):
        monkeypatch.delenv(name, raising=False)

    def write(text: str) -> None:
        (tmp_path / "pip.conf").write_text("[global]\n" + text)
        monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))

    return write


def names() -> list[str]:
    return [artifact.name for artifact in index.listing("tiny")]


def test_a_trusted_host_is_trusted_and_another_is_not(serve: Callable[[bool], int], conf: Callable[[str], None]) -> None:
    url = f"https://localhost:{serve(True)}/simple/"
    conf(f"index-url = {url}\ntrusted-host = elsewhere.example\n")
    with pytest.raises(errors.NoNetwork, match="SSLError"):
        names()
    conf(f"index-url = {url}\ntrusted-host = localhost\n")
    assert names() == ["tiny-1.tar.gz"]


def test_pips_certificate_is_ours(serve: Callable[[bool], int], conf: Callable[[str], None], tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(CERTIFICATE)
    conf(f"index-url = https://localhost:{serve(True)}/simple/\ncert = {tmp_path / 'ca.pem'}\n")
    assert names() == ["tiny-1.tar.gz"]


def test_pips_proxy_is_ours(serve: Callable[[bool], int], conf: Callable[[str], None]) -> None:
    """A host that exists nowhere answers, through the proxy that only pip.conf names."""
    conf(f"index-url = http://mirror.invalid/simple/\nproxy = http://127.0.0.1:{serve(False)}\n")
    assert names() == ["tiny-1.tar.gz"]
