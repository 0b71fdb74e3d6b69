"""Exit 0 where the server answers on /health, else 1. For health checks: needs nothing but Python.

healthy.py               ask once
healthy.py --wait PID    ask until it answers, or process PID, the server, has ended
healthy.py --address     print the host and the port that HOST and PORT say: serve.sh listens there, and this script asks there
"""

import os
import sys
import time
import urllib.request
from pathlib import Path

HOST, PORT = os.environ.get("HOST") or "127.0.0.1", os.environ.get("PORT") or "8000"
# A server that listens on every address is asked on the loopback.
ASKED = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(HOST, HOST)  # noqa: S104  (nothing is bound here)
URL = f"http://{f'[{ASKED}]' if ':' in ASKED else ASKED}:{PORT}/health"


def asked() -> str:
    """Empty where the server answers with 200, else what happened instead."""
    try:
        # A proxy of the environment is for the outside; this stays on the machine.
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(URL, timeout=5) as answer:
            return "" if answer.status == 200 else f"status {answer.status}"
    except (OSError, ValueError) as error:
        return str(error)


def lives(pid: str) -> bool:
    """Whether the process is there and has not ended (one that nobody waited for yet is still listed)."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def main(arguments: list[str]) -> int:
    if arguments == ["--address"]:
        print(HOST, PORT)
        return 0
    if arguments and (len(arguments) != 2 or arguments[0] != "--wait" or not arguments[1].isdigit()):
        print(__doc__, file=sys.stderr)
        return 2
    while why := asked():
        if not arguments:
            print(f"{URL}: {why}", file=sys.stderr)
            return 1
        if not lives(arguments[1]):
            print(f"process {arguments[1]} ended before {URL} answered: {why}", file=sys.stderr)
            return 1
        time.sleep(1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
