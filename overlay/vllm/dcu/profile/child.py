# SPDX-License-Identifier: Apache-2.0
"""One model run for `profile`, in a process of its own: `python -m vllm.dcu.profile.child SPEC RESULT`.

The engine is vLLM's own with the user's arguments of `vllm serve`. Each phase is stepped without the profiler, under it, and without it again.
"""

import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vllm.dcu.evidence.binding import Binding, observe_binding
from vllm.dcu.evidence.ladder import write_whole
from vllm.dcu.profile.account import shapes_of
from vllm.dcu.profile.pieces import GENERIC
from vllm.dcu.profile.report import Linear, ProfileError
from vllm.dcu.profile.runs import Phase, Ran, Spec
from vllm.dcu.profile.trace import Shape, read_trace
from vllm.dcu.records.typed import dump, read_json

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine

__all__ = ["main"]

_WARM = 3
"""Steps before any is timed: lazy compilation and first allocations are none of a step's."""


def main(argv: Sequence[str]) -> int:
    """Run what the file `argv[0]` asks for and write what was seen to `argv[1]`, whole or not at all."""
    spec: Spec = read_json(Spec, Path(argv[0]), 1 << 20)
    target = Path(argv[1])
    import torch
    from vllm.dcu.verify.rungs.modelrun import engine_of
    from vllm.dcu.verify.rungs.timing import read_bandwidth

    cuda = torch.cuda.is_available()
    # A GPU's memory is free before the engine takes it; a CPU's threads are placed by the engine.
    read = read_bandwidth("cuda") if cuda else None
    if cuda:
        torch.cuda.empty_cache()
    engine = engine_of(spec.model, spec.arguments, spec.mode)
    config = engine.vllm_config
    eager = bool(config.model_config.enforce_eager)
    captured = cuda and not eager and config.compilation_config.cudagraph_mode.name != "NONE"
    _fit(config, spec)
    # With graphs, names come from the eager run; shapes would cost the host time here.
    run = _Run(engine, spec, target.parent, shapes=not captured)
    phases = [run.decode(rows) for rows in spec.rows] + [run.prefill()]
    shapes = dict.fromkeys(shape for phase in phases for shape in shapes_of(read_trace(target.parent / phase.trace)))
    binding, choices = _observed(tuple(shapes))
    found = Ran(binding, eager, captured, _kv_bytes(engine), read or read_bandwidth("cpu"), tuple(phases), choices)
    write_whole(target, json.dumps(dump(found), indent=1) + "\n")
    return 0


def _fit(config: Any, spec: Spec) -> None:
    """Refuse what would be another run than the one that was asked for."""
    if config.parallel_config.world_size > 1:
        raise ProfileError("profile sees one process: leave tensor and pipeline parallelism out of the arguments after `--`")
    longest = config.model_config.max_model_len
    need = max(spec.context + _tokens(config, spec), spec.prefill + 1)
    if need > longest:
        raise ProfileError(f"{need} tokens are more than --max-model-len {longest}: give a smaller --context, --prefill or --steps")
    if max(spec.rows) > config.scheduler_config.max_num_seqs:
        raise ProfileError(f"--rows {max(spec.rows)} needs as many sequences: give --max-num-seqs after `--`")


def _tokens(config: Any, spec: Spec) -> int:
    """How many a sequence must be able to decode: each step may make one, and with speculative decoding every guess as well."""
    guesses = config.speculative_config.num_speculative_tokens if config.speculative_config else 0
    return spec.tokens * (1 + int(guesses))


def _kv_bytes(engine: "LLMEngine") -> float:
    """Bytes that one token takes in the KV cache of all attention layers; 0 where the engine does not say."""
    core = getattr(getattr(engine.engine_core, "engine_core", None), "scheduler", None)
    groups = getattr(getattr(core, "kv_cache_config", None), "kv_cache_groups", ())
    from vllm.v1.kv_cache_interface import AttentionSpec

    specs = [(group.kv_cache_spec, len(group.layer_names)) for group in groups]
    return float(sum(spec.page_size_bytes / spec.block_size * layers for spec, layers in specs if isinstance(spec, AttentionSpec)))


class _Run:
    def __init__(self, engine: "LLMEngine", spec: Spec, folder: Path, shapes: bool) -> None:
        self.engine, self.spec, self.folder, self.shapes = engine, spec, folder, shapes
        self.names: Iterator[int] = count()
        self.random = random.Random(936)  # noqa: S311  (prompts, not secrets)
        self.vocabulary = min(engine.vllm_config.model_config.get_vocab_size(), 250)

    def decode(self, rows: int) -> Phase:
        """`rows` sequences that decode together, one token of each a step."""
        names = [self._ask(self.spec.context, _tokens(self.engine.vllm_config, self.spec)) for _ in range(rows)]
        ready: set[str] = set()
        while len(ready) < rows:
            # The engine may have put something of its own behind the name.
            ready |= {output.request_id.partition("-")[0] for output in self.engine.step()} & set(names)
        phase = self._phase("decode", rows, self.engine.step)
        if (left := self.engine.get_num_unfinished_requests()) != rows:
            raise ProfileError(f"{rows - left} of {rows} sequences ended before the steps did: what was timed is no step of {rows}")
        self.engine.abort_request(names)
        self._drain()
        return phase

    def prefill(self) -> Phase:
        """One prompt from its arrival to its first token; each time another, so that no cache has it."""

        def step() -> None:
            self._ask(self.spec.prefill, 1)
            self._drain()

        return self._phase("prefill", self.spec.prefill, step)

    def _phase(self, name: Literal["decode", "prefill"], rows: int, step: Callable[[], object]) -> Phase:
        from vllm.dcu.profile.stepping import profiled, timed

        for _ in range(_WARM):
            step()
        path = self.folder / f"{name}-{rows}.json.gz"
        profiled(step, 1, path, shapes=self.shapes)  # starting a profiler for the first time costs the first step dearly
        before = timed(step, self.spec.steps)
        profiled(step, self.spec.steps, path, shapes=self.shapes)
        return Phase(name, rows, (*before, *timed(step, self.spec.steps)), path.name)

    def _ask(self, length: int, tokens: int) -> str:
        from vllm.sampling_params import SamplingParams

        name = f"profile{next(self.names)}"
        prompt: Any = {"prompt_token_ids": [self.random.randrange(1, self.vocabulary) for _ in range(length)]}
        self.engine.add_request(name, prompt, SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True))
        return name

    def _drain(self) -> None:
        while self.engine.has_unfinished_requests():
            self.engine.step()


def _observed(shapes: Sequence[Shape]) -> tuple[Binding, tuple[Linear, ...]]:
    """What this process runs on, and what the gate's rules say of each shape; without a gate, upstream's function is what runs."""
    from vllm.dcu import gate
    from vllm.dcu.ask.explain import explain
    from vllm.dcu.dispatch.context import running_toolchain
    from vllm.dcu.dispatch.rules import Call
    from vllm.dcu.records.catalog import CATALOG
    from vllm.platforms import current_platform

    active = gate.active()
    if active is None:
        why = f"no DCU: vLLM runs as {type(current_platform).__name__}"
        return observe_binding("none", running_toolchain(), simulated=why), ()
    context = active.context
    binding = observe_binding(context.arch, context.toolchain, simulated=context.simulated, platform=context.beside)
    found = []
    for shape in shapes:
        said = explain(Call(shape.dtype, shape.n, shape.m, shape.k), context, CATALOG + context.site.records)
        reasons = tuple(reason.value for reason in said.reasons)
        found.append(Linear(shape.dtype, shape.n, shape.m, shape.k, "", said.taken or GENERIC, reasons))
    return binding, tuple(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
