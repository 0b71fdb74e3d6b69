"""What `deploy/` promises: the start script under a hostile env.sh, the health check against a real answer, files that agree."""

from __future__ import annotations

import configparser
import http.server
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from scripts.common.paths import ROOT
from scripts.machine import nodes
from scripts.wheel import finish
from tests.machine import env_sh, program
from tests.support import not_run

DEPLOY = ROOT / "deploy"
INSTALLED = "/opt/vllm-for-gfx936/"


def serve(folder: Path, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The start script with a `vllm` that prints what it was called with."""
    program(folder / "bin" / "vllm", '#!/bin/sh\necho "ROCM_PATH=$ROCM_PATH"\nprintf "%s\\n" "$@"\n')
    env = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "DTK_ENV": str(env_sh(folder / "dtk")), **environ}
    return subprocess.run([DEPLOY / "serve.sh", *argv], env=env, capture_output=True, text=True, check=False)


def test_the_start_script_serves_under_an_env_sh_that_ends_non_zero(tmp_path: Path) -> None:
    done = serve(tmp_path, "--tensor-parallel-size", "2", MODEL="/models/a b")
    words = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert f"ROCM_PATH={tmp_path / 'dtk'}" in words
    assert words[words.index("serve") :] == [
        "serve", "/models/a b", "--dtype", "bfloat16", "--max-model-len", "32768", "--host", "127.0.0.1", "--port", "8000",
        "--tensor-parallel-size", "2",
    ]  # fmt: skip


@pytest.mark.parametrize("modes", [{}, {"SHELLOPTS": "braceexpand:errexit:nounset:pipefail"}])
def test_an_image_that_sets_rocm_path_alone_and_a_shell_with_strict_modes_are_served(tmp_path: Path, modes: Mapping[str, str]) -> None:
    program(tmp_path / "bin" / "vllm", '#!/bin/sh\necho "libraries $LD_LIBRARY_PATH modes $SHELLOPTS"\n')
    prefix = env_sh(tmp_path / "dtk", "false; export LATE=$NEVER_SET").parent
    env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "ROCM_PATH": str(prefix), "MODEL": "m", **modes}
    done = subprocess.run([DEPLOY / "serve.sh"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"libraries {prefix}/lib: modes" in done.stdout
    assert done.stdout.endswith("modes \n")


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({}, "MODEL is not set"),
        ({"MODEL": "m", "HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, "HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES differ"),
    ],
)
def test_the_start_script_refuses_in_one_sentence(tmp_path: Path, environ: Mapping[str, str], says: str) -> None:
    done = serve(tmp_path, **environ)
    assert done.returncode == 2
    assert says in done.stderr
    assert "--max-model-len" not in done.stdout


class Answer(http.server.BaseHTTPRequestHandler):
    code = 200

    def do_GET(self) -> None:
        self.send_response(self.code if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def asking(port: int, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PORT": str(port), "http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", **environ}
    return subprocess.run([sys.executable, DEPLOY / "healthy.py", *argv], env=env, capture_output=True, text=True, check=False, timeout=30)


def healthy(port: int, **environ: str) -> int:
    return asking(port, **environ).returncode


def test_the_health_check_follows_the_answer(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert healthy(port) == 0
    monkeypatch.setattr(Answer, "code", 503)
    assert healthy(port) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.77", "localhost", "0.0.0.0", "", "::1", "::"])
def test_the_health_check_asks_where_the_server_was_told_to_listen(host: str, tmp_path: Path) -> None:
    """The start script's own words to vLLM, and a server that does as told."""
    words = serve(tmp_path, MODEL="m", HOST=host).stdout.splitlines()
    listens = words[words.index("--host") + 1]
    family = socket.AF_INET6 if ":" in listens else socket.AF_INET
    server = type("Server", (http.server.HTTPServer,), {"address_family": family})
    try:
        made = server((listens, 0), Answer)
    except OSError as error:
        not_run(f"no server can listen on {listens} here: {error}")
    with made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        found = asking(made.server_port, HOST=host)
        made.shutdown()
        thread.join()
    assert found.returncode == 0, found.stderr
    if host == "127.0.0.77":
        assert healthy(made.server_port, HOST="127.0.0.1") == 1, "the control: another address of the loopback does not answer"


@pytest.mark.parametrize("argument", ["--host", "--port=9000", "--uds"])
def test_an_address_that_the_health_check_would_not_see_is_refused(argument: str, tmp_path: Path) -> None:
    done = serve(tmp_path, argument, "x", MODEL="m")
    assert done.returncode == 2
    assert "set HOST and PORT" in done.stderr


@pytest.mark.parametrize("reaped", [True, False])
def test_the_wait_for_health_ends_with_the_server(reaped: bool) -> None:
    with subprocess.Popen(["sleep", "1"]) as server:
        if reaped:
            server.wait()
        start = time.monotonic()
        found = asking(9, "--wait", str(server.pid))
        assert time.monotonic() - start < 10
    assert found.returncode == 1
    assert "ended before" in found.stderr


def test_the_wait_for_health_ends_with_the_answer(port: int) -> None:
    assert asking(port, "--wait", str(os.getpid())).returncode == 0
    assert asking(port, "--wait", "none").returncode == 2


def test_no_server_is_not_healthy() -> None:
    assert healthy(9) == 1


def test_every_file_of_ours_that_the_recipes_name_is_there() -> None:
    named = set()
    for name in ("vllm-gfx936.service", "compose.yaml", "Containerfile"):
        named |= set(re.findall(re.escape(INSTALLED) + r"(deploy/[\w.]+)", (DEPLOY / name).read_text()))
    assert named == {"deploy/serve.sh", "deploy/healthy.py"}
    assert all((ROOT / path).is_file() for path in named)
    assert os.access(DEPLOY / "serve.sh", os.X_OK)


def test_the_unit_starts_the_script_and_waits_for_health() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "vllm-gfx936.service")
    service = unit["Service"]
    assert service["ExecStart"] == INSTALLED + "deploy/serve.sh"
    assert service["ExecStartPost"].endswith("healthy.py --wait $MAINPID"), "the wait ends with the main process"
    assert (service["User"], service["NoNewPrivileges"]) == ("vllm", "yes")
    assert service["Restart"] == "always", "vLLM ends with code 0 where its engine died"


def test_the_compose_file_gives_the_devices_and_publishes_on_this_machine_only() -> None:
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["vllm"]
    assert {"/dev/kfd", "/dev/mkfd", "/dev/dri"} == set(service["devices"])
    assert "/opt/hyhal:/opt/hyhal:ro" in service["volumes"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert service["healthcheck"]["test"][-1].endswith("healthy.py")
    assert service.get("privileged") is None
    assert service["restart"] == "unless-stopped"


def test_the_container_recipe_never_lets_a_resolver_near_the_vendors_torch() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    installs = re.findall(r"pip install ([^&\n]*)", text)
    assert installs
    assert all(line.startswith("--no-deps ") for line in installs)
    assert "BASE" in text.split("FROM", 1)[0]


def test_the_recipe_installs_the_one_wheel_that_the_build_names() -> None:
    (line,) = re.findall(r"pip install ([^\n]*)", (DEPLOY / "Containerfile").read_text())
    assert f"dist/{finish.NAME}" in line
    assert "*" not in line


@pytest.mark.parametrize("path", ["deploy/Containerfile", "deploy/compose.yaml", "README.md", "README.zh-CN.md", "docs/troubleshooting.md"])
def test_wherever_a_container_is_started_all_that_a_dcu_needs_is_named(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert all(word in text for word in ("/dev/kfd", "/dev/mkfd", "/dev/dri", "/opt/hyhal"))
    if "docker run" in text:
        assert all(word in text for word in nodes.CONTAINER.split())


def test_an_image_is_built_from_sources_and_not_from_what_lies_in_dist() -> None:
    """A CPU wheel left in dist/ would be installed beside the device wheel by the recipe's glob."""
    assert {"build", "dist"} <= set((ROOT / ".dockerignore").read_text().split())
