# SPDX-License-Identifier: Apache-2.0
"""One run of a model in one process, as V3, V4 and V6 need it: `python -m vllm.dcu.verify.rungs.modelrun SPEC RESULT`.

The engine is vLLM's own, with the user's arguments of `vllm serve`; what is asked is one short greedy completion (as many at once as the capability has rows), once to warm up and
once under the profiler.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.dcu.records.strict import parse_json, read_bytes

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine

__all__ = ["engine_of", "main"]

_PROMPT = "The first service of this device"


def main(argv: Sequence[str]) -> int:
    """Run what the file `argv[0]` asks for and write what was seen to `argv[1]`, whole or not at all."""
    spec = parse_json(read_bytes(Path(argv[0]), 1 << 20), any_text=True)
    begun = time.monotonic()
    engine = engine_of(spec["model"], spec["arguments"], spec["mode"])
    seconds = time.monotonic() - begun
    _generate(engine, spec, "warm")
    before = _hits(spec["capabilities"])
    tokens, events, marked = _profiled(engine, spec, Path(argv[1]).parent)
    by = {ident: hits - before[ident] for ident, hits in _hits(spec["capabilities"]).items()}
    result = {
        "tokens": tokens,
        "hits": sum(by.values()),
        "by": by,
        "kernels": marked,
        "device_events": events,
        "seconds": round(seconds, 1),
    }
    target = Path(argv[1])
    fresh = target.with_suffix(".new")
    fresh.write_text(json.dumps(result), encoding="utf-8")
    fresh.replace(target)
    return 0


def engine_of(model: str, serve: Sequence[str], mode: str) -> "LLMEngine":
    """vLLM's engine in this process, with arguments of `vllm serve`; `mode` is `eager`, `compiled`, `captured`, or `served`: as the arguments say."""
    # As in a server: the platform's own kernels are there before any plugin runs.
    import vllm._custom_ops  # noqa: F401
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.llm_engine import LLMEngine

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    # What only the server takes (its port, its template) is left alone.
    known, _ = parser.parse_known_args(["--model", model, *serve])
    known.enforce_eager = known.enforce_eager if mode == "served" else mode == "eager"
    arguments = EngineArgs.from_cli_args(known)
    if mode == "compiled":
        from vllm.config import CUDAGraphMode

        arguments.compilation_config.cudagraph_mode = CUDAGraphMode.NONE
    return LLMEngine.from_engine_args(arguments)


def _generate(engine: "LLMEngine", spec: Mapping[str, Any], name: str) -> list[int]:
    """Tokens of the first of N equal requests, which are decoded together: N rows a step; one N of `rows` after the other."""
    return [token for n in spec["rows"] for token in _together(engine, spec["tokens"], f"{name}-{n}", n)]


def _together(engine: "LLMEngine", tokens: int, name: str, n: int) -> list[int]:
    from vllm.sampling_params import SamplingParams

    for i in range(n):
        engine.add_request(f"{name}-{i}", _PROMPT, SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True))
    found: list[int] = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.request_id.startswith(f"{name}-0"):
                found = [int(token) for token in output.outputs[0].token_ids]
    return found


def _hits(idents: Sequence[str]) -> dict[str, int]:
    from vllm.dcu import gate

    active = gate.active()
    counts = active.tally.snapshot() if active else []
    return {ident: sum(count.value for count in counts if count.key.kind == "hit" and count.key.record == ident) for ident in idents}


def _profiled(engine: "LLMEngine", spec: Mapping[str, Any], folder: Path) -> tuple[list[int], int, int]:
    """(tokens, device kernels seen, how many of them carry a mark); on a CPU an operator counts as a kernel."""
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    cuda = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else [])
    with profile(activities=activities) as profiler:
        tokens = _generate(engine, spec, "profiled")
        if cuda:
            torch.cuda.synchronize()
    wanted = DeviceType.CUDA if cuda else DeviceType.CPU
    names: dict[str, int] = {}
    for event in profiler.events():
        if event.device_type == wanted:
            names[event.name] = names.get(event.name, 0) + 1
    (folder / "kernels.json").write_text(json.dumps(dict(sorted(names.items(), key=lambda item: -item[1])), indent=1), encoding="utf-8")
    marked = sum(count for name, count in names.items() if any(mark in name for mark in spec["marks"]))
    return tokens, sum(names.values()), marked


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
