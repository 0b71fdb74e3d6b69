# SPDX-License-Identifier: Apache-2.0
"""What is measured: every weight of the model and every N that decode will have.  Standard library only."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from vllm.dcu.ask.model_config import ModelError, draft_linears, linears, model_dtype, shapes_once
from vllm.dcu.ask.survey import read_config, weights_dtype
from vllm.dcu.records.gemv import MAX_N, VARIANTS
from vllm.dcu.records.kernels import GEMV, LLMM1, broken_limit
from vllm.dcu.records.strict import StrictError, parse_json, plain

__all__ = ["LINEAR", "Choice", "Item", "Plan", "Served", "choices", "make_plan", "read_served", "seconds"]

LINEAR = "F.linear"
_GRAPHS = (1, 2, 4)
"""Upstream's smallest graphs, and what an eager server's few sequences are taken for."""
_ROWS_PER_BLOCK = 4
_MTP = "mtp"


@dataclass(frozen=True)
class Choice:
    """A kernel and its own argument; `F.linear` has neither."""

    kernel: str = ""
    value: int = 0

    @property
    def name(self) -> str:
        """For people and files."""
        return f"{self.kernel} {self.value}" if self.kernel else LINEAR


@dataclass(frozen=True)
class Item:
    """One weight (M, K) with N activation rows; `calls` of it in one decode step, by the Linears of `name`."""

    name: str
    dtype: str
    m: int
    k: int
    n: int
    calls: int

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.m} x {self.k} {self.dtype}, N={self.n}"

    @property
    def bytes(self) -> int:
        """What one call has to move: weight, activation, result."""
        return 2 * (self.m * self.k + self.n * (self.m + self.k))


@dataclass(frozen=True)
class Served:
    """What of the serve arguments decides shapes and N."""

    rows: tuple[int, ...]
    tp: int = 1
    dtype: str = "auto"
    guesses: int = 0
    drafts: bool = False


@dataclass(frozen=True)
class Plan:
    """What is measured, in order, and what is left out, one sentence each."""

    items: tuple[Item, ...]
    notes: tuple[str, ...]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ModelError(f"the serve arguments cannot be read: {message}")


def _object(text: str) -> dict[str, Any]:
    try:
        found = parse_json(text.encode(), any_text=True)
    except StrictError as error:
        raise argparse.ArgumentTypeError(f"it is JSON that cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"{plain(text, 80)} stands where a JSON object belongs")
    return found


def read_served(arguments: Sequence[str]) -> Served:
    """What `vllm serve` with these arguments decodes with: N = 1, the graphs' sizes up to 4, and 1 + guesses.

    Raises:
        ModelError: they cannot be read, or lie in a file.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument("--config")
    parser.add_argument("--cudagraph-capture-sizes", type=int, nargs="+", default=[])
    parser.add_argument("--compilation-config", "-cc", type=_object, default={})
    parser.add_argument("--speculative-config", type=_object, default={})
    words = [_dashed(word) for word in arguments]
    known, _ = parser.parse_known_args(words)
    if known.config:
        raise ModelError("what a file of `--config` says is not read here: give these arguments themselves, or --rows")
    guesses = known.speculative_config.get("num_speculative_tokens", 0)
    sizes = known.cudagraph_capture_sizes or known.compilation_config.get("cudagraph_capture_sizes") or _GRAPHS
    if type(guesses) is not int or guesses < 0 or not all(type(n) is int for n in sizes):
        raise ModelError("the serve arguments have a number of guesses or graph sizes that are no whole numbers")
    most = (known.max_num_seqs or max(_GRAPHS)) * (1 + guesses) * (1 if known.enforce_eager else 2)
    rows = {1, *(n for n in sizes if 1 <= n <= min(max(_GRAPHS), most))} | ({1 + guesses} if guesses < MAX_N else set())
    method = str(known.speculative_config.get("method", ""))
    return Served(tuple(sorted(rows)), known.tensor_parallel_size, known.dtype, guesses, method.endswith(_MTP))


def _dashed(word: str) -> str:
    name, sign, value = word.partition("=")
    return name.replace("_", "-") + sign + value if name.startswith("--") else word


def make_plan(config: Mapping[str, Any], served: Served, weights: str = "", most: int = MAX_N) -> Plan:
    """Every weight of the model once, largest share of a step first within the model's order, with every N.

    Args:
        config: the contents of the model's `config.json`.
        weights: the dtype in the model's files.

    Raises:
        ModelError: the model's shapes cannot be stated, or a number of rows is none that a kernel takes.
    """
    if wrong := [n for n in served.rows if not 1 <= n <= most]:
        raise ModelError(f"N={wrong[0]} is none: a kernel takes 1 to {most} rows")
    dtype = model_dtype(config, served.dtype, weights)
    drafts = draft_linears(config, served.tp) * max(1, served.guesses) if served.drafts else ()
    notes = []
    if served.guesses and not drafts:
        notes.append("The draft model's own Linears are left out: only a model's own multi-token-prediction layers are known here.")
    items = []
    for linear in shapes_once((*linears(config, served.tp), *drafts)):
        name = " + ".join(dict.fromkeys(linear.name.split(" + ")))
        if linear.bias:
            notes.append(f"{name} ({linear.m} x {linear.k}) has a bias, which no kernel takes: F.linear stays.")
        elif dtype not in GEMV.dtypes:
            notes.append(f"{name} ({linear.m} x {linear.k}) is {dtype}, which no kernel computes: F.linear stays.")
        else:
            items += [Item(name, dtype, linear.m, linear.k, n, linear.calls) for n in served.rows]
    return Plan(tuple(items), tuple(notes))


def plan_of(model: Path, served: Served) -> Plan:
    """The plan of a model folder or its config.json.

    Raises:
        ModelError: as `make_plan`.
    """
    return make_plan(read_config(model), served, weights_dtype(model) if model.is_dir() else "")


def choices(item: Item) -> tuple[Choice, ...]:
    """What may compute `item`: F.linear, LLMM1 where its limits allow, every variant of GEMV that takes N rows."""
    found = [(LLMM1, _ROWS_PER_BLOCK), *((GEMV, number) for number in VARIANTS)]
    fit = [
        (kernel, value) for kernel, value in found if not broken_limit(kernel, item.dtype, item.n, item.m, item.k, {kernel.argument: value})
    ]
    return (Choice(), *(Choice(kernel.name, value) for kernel, value in fit))


def seconds(item: Item) -> float:
    """A rough guess, for --dry-run, of how long `item` takes to measure on a device that reads 1 TB/s; progress goes by what was seen."""
    copies = max(2, min(256, -(-(1 << 30) // (2 * item.m * item.k))))
    one = copies * max(item.bytes / 1e12, 5e-6)
    return len(choices(item)) * (0.05 + 8 * one) + 60 * one
