# SPDX-License-Identifier: Apache-2.0
"""profile: where a decode step's milliseconds go, and what to do about it.

    python -m vllm.dcu profile --model /models/Qwen3.5-27B --rows 1,4 -- --max-model-len 32768
    python -m vllm.dcu profile --model /models/Qwen3.5-27B --baseline OLD/profile.json -- --max-model-len 32768

What follows `--` are the arguments that the model is served with. docs/profile.md says what the figures mean and where they end.
"""

import argparse
import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from vllm.dcu.profile.build import profile_of
from vllm.dcu.profile.report import ProfileError, load_profile, write_profile
from vllm.dcu.profile.runs import Spec, run
from vllm.dcu.profile.table import as_text, compared, slower
from vllm.dcu.profile.trace import TraceError
from vllm.dcu.verify.asked import ending_its_children, parted

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m vllm.dcu profile",
        description=(__doc__ or "").split("\n")[0],
        epilog="exit: 0 profiled; 1 error; 2 usage; 5 a step is slower than in --baseline",
    )
    parser.add_argument("--model", required=True, help="a folder or name, as `vllm serve` takes it")
    parser.add_argument("--rows", default="1", metavar="N,N", help="sequences that decode together, a phase each (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=16, help="of each phase under the profiler (default: %(default)s)")
    parser.add_argument("--context", type=int, default=128, help="tokens before the decoded ones (default: %(default)s)")
    parser.add_argument("--prefill", type=int, default=128, help="tokens of the prompt of the prefill (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=1800.0, metavar="S", help="of each of the runs (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where everything goes (default: a new one here)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where profile.json goes (default: in the folder)")
    parser.add_argument("--baseline", type=Path, metavar="PROFILE.JSON", help="say what changed since that profile")
    return parser


def main(argv: Sequence[str]) -> int:
    """Command line of `profile`."""
    words, serve = parted(argv)
    parser = _parser()
    args = parser.parse_args(words)
    if not re.fullmatch(r"[1-9]\d{0,5}(,[1-9]\d{0,5})*", args.rows):
        parser.error(f"--rows {args.rows!r} is not N or N,N,...: how many sequences decode together")
    if min(args.steps, args.context, args.prefill) < 1 or args.timeout <= 0:
        parser.error("--steps, --context, --prefill and --timeout are at least 1")
    try:
        with ending_its_children():
            return _main(args, serve)
    except (ProfileError, TraceError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _main(args: argparse.Namespace, serve: tuple[str, ...]) -> int:
    baseline = load_profile(args.baseline) if args.baseline else None
    folder = args.folder or Path(f"profile-{time.strftime('%Y%m%d-%H%M%S')}")
    if (folder / "profile.json").exists():
        raise ProfileError(f"{folder} holds a profile already: name a fresh folder")
    rows = tuple(dict.fromkeys(map(int, args.rows.split(","))))
    spec = Spec(args.model, serve, "served", rows, args.steps, args.context, args.prefill)
    _say(f"profile: {args.model} as served")
    ran = run(spec, folder / "served", args.timeout)
    named = None
    if not ran.eager:
        _say(f"profile: {args.model} eager, for the names")
        asked = Spec(args.model, serve, "eager", rows, args.steps, args.context, args.prefill)
        named = (run(asked, folder / "eager", args.timeout), folder / "eager")
    target = args.json or folder / "profile.json"
    profile = profile_of(spec, ran, folder / "served", named, folder, _compare(args, serve, target))
    write_profile(profile, target)
    print(as_text(profile, colour=_terminal() and not os.environ.get("NO_COLOR")))
    if baseline:
        print("\n".join(["", f"Since {args.baseline}:", *(compared(baseline, profile) or ("nothing beyond the noise",))]))
    print(f"\n{target}; traces for Perfetto: {folder}/served/*.json.gz; flame graphs: {folder}/flame-*.svg")
    return 5 if baseline and slower(baseline, profile) else 0


def _compare(args: argparse.Namespace, serve: Sequence[str], target: Path) -> str:
    words = ["python", "-m", "vllm.dcu", "profile", "--model", args.model, "--rows", args.rows, "--baseline", str(target)]
    return shlex.join([*words, *(["--", *serve] if serve else [])])


def _terminal() -> bool:
    return sys.stdout.isatty()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
