# SPDX-License-Identifier: Apache-2.0
"""Command line of the adaptation: `python -m vllm.dcu VERB`. Each verb is a module with `main(argv) -> int`."""

import importlib
import importlib.util
import sys
from collections.abc import Sequence

from vllm.dcu.ask.model_config import ModelError
from vllm.dcu.env import EnvError
from vllm.dcu.records.strict import StrictError

__all__ = ["VERBS", "main"]

VERBS: dict[str, tuple[str, str]] = {
    "explain": ("vllm.dcu.ask.explain", "why a call is or is not taken by a native kernel, on any machine"),
    "survey": ("vllm.dcu.ask.survey", "every Linear of a model, from its config.json, with the decision"),
    "counters": ("vllm.dcu.ask.counters", "add up the dispatch counters of a run"),
    "docs": ("vllm.dcu.ask.documents", "the generated parts of the documentation, checked or written"),
    "manifest": ("vllm.dcu.ask.manifest", "what build this is"),
    "verify": ("vllm.dcu.verify.verb", "the evidence ladder on this device"),
    "profile": ("vllm.dcu.profile.verb", "where a decode step's milliseconds go, and what to do about it"),
    "tune": ("vllm.dcu.tune.verb", "the fastest right choice for each Linear of a model on this device, measured and verified"),
    "bench": ("vllm.dcu.verify.bench", "the kernel against F.linear, shape by shape"),
}


def _usage() -> str:
    lines = ["python -m vllm.dcu VERB [options]; --help after a verb lists its options", ""]
    lines += [f"  {verb:10} {what}" for verb, (module, what) in VERBS.items() if importlib.util.find_spec(module)]
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Run one verb. Exit codes: the verb's own; 1 for an error that is printed as one sentence; 2 for wrong usage."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if argv else 2
    verb, *rest = argv
    if verb not in VERBS or importlib.util.find_spec(VERBS[verb][0]) is None:
        known = "is not part of this build" if verb in VERBS else "is not a verb"
        print(f"error: {verb!r} {known}\n\n{_usage()}", file=sys.stderr)
        return 2
    try:
        return int(importlib.import_module(VERBS[verb][0]).main(rest))
    except (EnvError, ModelError, StrictError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
