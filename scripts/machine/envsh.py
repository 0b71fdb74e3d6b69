"""The environment that the DTK's env.sh makes: sourced in a bash of its own, which it may not outlive, and not believed half done.

The vendor's file may print, read unset variables, end non-zero, set traps, leave jobs behind or never end. What the caller's shell
exported as its own modes (SHELLOPTS, BASHOPTS) stays out. Bare Python.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from scripts.common import errors
from scripts.common.files import say

__all__ = ["WAIT_SECONDS", "source"]

WAIT_SECONDS = 60.0
_TOLD_AFTER = 3.0

# The paths are arguments, never text of this script. What comes back (environment, trace, status) goes to files: a background job that
# keeps a pipe open is not waited for, and nothing that the file prints gets in between. A trap on EXIT, where the file sets none of its
# own, is for a file that calls `exit`; `done` is written only where the shell came back from `source`.
_SOURCE = """
gfx936_file=$1 gfx936_env=$2 gfx936_out=$3
shift 3
trap '"$gfx936_env" -0 > "$gfx936_out/left"' EXIT
exec {gfx936_trace}> "$gfx936_out/trace"
BASH_XTRACEFD=$gfx936_trace
PS4='+gfx936|${BASH_SOURCE[0]-}|${LINENO}|'
set -x
source "$gfx936_file"
{ gfx936_status=$?; trap - EXIT; set +xeuTE; } 2> /dev/null
"$gfx936_env" -0 > "$gfx936_out/left"
echo "$gfx936_status" > "$gfx936_out/done"
exit 0
"""
_NOT_TAKEN = {"_", "SHLVL", "PWD", "OLDPWD", "BASH_XTRACEFD", "PS4"}
_SHELL_MODES = ("BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "POSIXLY_CORRECT", "BASH_XTRACEFD", "PS4", "BASH_COMPAT")


def source(file: Path, environ: Mapping[str, str]) -> tuple[dict[str, str], int]:
    """The environment after `source FILE` in a bash of its own, and the status that the file ended with.

    Raises:
        errors.MissingInput: no such file, or no bash.
        errors.CannotBuild: the file never came to an end, stopped midway, or destroyed the shell; its line and its words are named.
    """
    bash, env_program = shutil.which("bash"), shutil.which("env")
    if not file.is_file():
        inside = f"set DTK_ENV={file / 'env.sh'}" if (file / "env.sh").is_file() else "set DTK_ENV to the DTK's env.sh"
        raise errors.MissingInput(f"{file} is not a file", "the DTK's environment comes from it", inside)
    if bash is None or env_program is None:
        raise errors.MissingInput("bash is missing", "the DTK's env.sh is written for it", "install bash, or source env.sh yourself")
    clean = {key: value for key, value in environ.items() if key not in _SHELL_MODES}
    parsed = subprocess.run([bash, "--norc", "-n", "--", str(file)], env=clean, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if parsed.returncode:
        raise _broken(file, f"bash cannot read it: {_words(parsed.stderr)}")
    with tempfile.TemporaryDirectory(prefix="gfx936-env-") as folder:
        out = Path(folder)
        argv = [bash, "--noprofile", "--norc", "-c", _SOURCE, "dtk-env", str(file), env_program, folder]
        code = _run(argv, clean, file, out)
        ended, left, said = _bytes(out / "done"), _bytes(out / "left"), _words(_bytes(out / "said"))
        line, command = _last(out, file)
    where = f"line {line} (`{command}`)" if line else "a line that cannot be told"
    heard = f"; it said: {said}" if said else ""
    pairs = [row.partition("=") for row in os.fsdecode(left).split("\0") if "=" in row]
    found = {key: value for key, _, value in pairs if key not in _NOT_TAKEN and not key.startswith("gfx936_")}
    if "PATH" not in found:
        raise _broken(file, f"no environment came back: it ended the shell at {where}{_trap(file)}{heard}")
    if not ended.strip():  # it left by `exit`, or under a strict mode of its own: whole only where that was its last line
        if line is None or line < _last_code_line(file):
            raise _broken(file, f"it stopped midway, at {where}: what it sets after that is missing{heard}")
        return found, code
    status = int(ended)
    if status and re.match(r"return\b", command) and line is not None and line < _last_code_line(file):
        raise _broken(file, f"it gave up at {where}{heard}")
    return found, status


def _run(argv: list[str], env: Mapping[str, str], file: Path, out: Path) -> int:
    """Run the shell for at most WAIT_SECONDS. It has a session of its own, and what it leaves running there is ended with it."""
    with (out / "said").open("wb") as said, subprocess.Popen(
        argv, env=dict(env), stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
    ) as shell:  # fmt: skip
        try:
            with suppress(subprocess.TimeoutExpired):
                return shell.wait(min(_TOLD_AFTER, WAIT_SECONDS))
            line, command = _last(out, file)
            say(f"waiting for {file} to end, at most {WAIT_SECONDS:.0f} s; it is at line {line or '?'}: {command}")
            try:
                return shell.wait(max(0.0, WAIT_SECONDS - _TOLD_AFTER))
            except subprocess.TimeoutExpired:
                line, command = _last(out, file)
                why = f"it did not end within {WAIT_SECONDS:.0f} s: it stands at line {line or '?'} (`{command}`)"
                raise _broken(file, why) from None
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(shell.pid, signal.SIGKILL)


def _last(out: Path, file: Path) -> tuple[int | None, str]:
    """Number and text of the last line of `file` itself that the shell's trace shows."""
    rows = [row.split("|", 3) for row in os.fsdecode(_bytes(out / "trace")).splitlines() if re.match(r"\++gfx936\|", row)]
    mine = [row for row in rows if len(row) == 4 and row[1] == str(file) and row[2].isdigit()]
    if not mine:
        return None, ""
    return int(mine[-1][2]), _words(os.fsencode(mine[-1][3]), 120)


def _trap(file: Path) -> str:
    """The line that sets a trap for the end of the shell, in words."""
    lines = enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
    found = next(((n, line.strip()) for n, line in lines if re.search(r"(?:^|[;&|\s])trap\b.*\s(?:EXIT|0)\b", line)), None)
    return f", under the trap of its line {found[0]} (`{found[1][:120]}`)" if found else ""


def _last_code_line(file: Path) -> int:
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return max((number for number, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")), default=0)


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _words(said: bytes, most: int = 300) -> str:
    """The last line that was said, printable and short."""
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    text = "".join(c if c.isprintable() else "?" for c in lines[-1]) if lines else ""
    return text if len(text) <= most else text[: most - 3] + "..."


def _broken(file: Path, why: str) -> errors.Fatal:
    return errors.CannotBuild(
        f"{file} cannot be sourced", why, "correct that line; or source it in your shell, see what it says, and run this again there"
    )
