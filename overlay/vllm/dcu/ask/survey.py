# SPDX-License-Identifier: Apache-2.0
"""survey: every unquantized Linear shape of a model from its config.json alone, with the decision for decode and prefill.

    python -m vllm.dcu survey /models/Qwen3.5-27B --tp 1

No weights are read and no device is needed; `--arch` (gfx936 by default) is assumed, as in `explain`. Only the language model is listed:
vision encoders and multi-token-prediction heads are not.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vllm.dcu.ask.explain import context_for, explain
from vllm.dcu.ask.model_config import Linear, ModelError, linears, model_dtype, shapes_once
from vllm.dcu.dispatch.context import Context
from vllm.dcu.dispatch.rules import Call
from vllm.dcu.records.kernels import GEMV, broken_limit
from vllm.dcu.records.strict import StrictError, parse_json, plain, read_bytes, read_head

__all__ = ["Row", "as_text", "main", "read_config", "survey", "weights_dtype"]

_MOST_BYTES = 16 << 20
PREFILL_ROWS = 512
"""How many rows the prefill column asks about; any number but 1 gives the same answer."""

WHERE_ONE_ROW = (
    "N is 1 where one sequence decodes alone. Two at once, speculative decoding (N = 1 + guesses) and a step that a captured graph pads to "
    "2 or more rows go to F.linear."
)

TUNE = (
    "Kernels of this build could compute these without a bias, N = 1 to 5; on the device, one command measures and verifies which should:\n"
    "python -m vllm.dcu tune --model MODEL"
)


@dataclass(frozen=True)
class Row:
    """One shape: what takes it at decode (N=1) and at prefill, and, where nothing does, why. `tune`: whether a kernel of this build could."""

    linear: Linear
    decode: str | None
    prefill: str | None
    reasons: tuple[str, ...]
    tune: bool


def read_config(path: Path) -> dict[str, Any]:
    """The model's config.json, from the file or from the folder that holds it.

    Raises:
        ModelError: there is none, or it is not a JSON object.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        data = parse_json(read_bytes(file, _MOST_BYTES), any_text=True)
    except (FileNotFoundError, StrictError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ModelError(f"{plain(str(file))} cannot be read ({why}): give a model folder or its config.json") from None
    if not isinstance(data, dict):
        raise ModelError(f"{plain(str(file))} does not hold a JSON object")
    return data


def weights_dtype(folder: Path) -> str:
    """The one dtype in the headers of a folder's safetensors files, or "" where there are none or several."""
    words = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}
    found = set()
    for file in sorted(folder.glob("*.safetensors")):
        try:
            length = int.from_bytes(read_head(file, 8)[:8], "little")
            head = parse_json(read_head(file, 8 + min(length, _MOST_BYTES))[8 : 8 + length], any_text=True)
            found |= {words.get(entry["dtype"], "") for name, entry in head.items() if name != "__metadata__"}
        except (OSError, StrictError, TypeError, KeyError, AttributeError):
            return ""
    return found.pop() if len(found) == 1 else ""


def survey(config: Mapping[str, Any], context: Context, tp: int = 1, dtype: str = "") -> tuple[Row, ...]:
    """One row for each shape of the model's Linears on one rank of `tp`, its weights in `dtype` (by default `model_dtype`'s).

    Raises:
        ModelError: the model's shapes cannot be stated.
    """
    return tuple(_row(linear, dtype or model_dtype(config), context) for linear in shapes_once(linears(config, tp)))


def _row(linear: Linear, dtype: str, context: Context) -> Row:
    decode = explain(Call(dtype, 1, linear.m, linear.k, linear.bias), context)
    prefill = explain(Call(dtype, PREFILL_ROWS, linear.m, linear.k, linear.bias), context)
    fits = broken_limit(GEMV, dtype, 1, linear.m, linear.k, {GEMV.argument: min(GEMV.values)}) is None and not linear.bias
    return Row(
        linear,
        decode.taken,
        prefill.taken,
        tuple(reason.value for reason in decode.reasons),
        fits,
    )


def as_text(rows: Sequence[Row], context: Context, tp: int, dtype: str = "") -> str:
    """The table for people."""
    lines = [f"device {context.label}, tensor parallel {tp}{dtype and f', weights in {dtype}'}", ""]
    lines.append(f"{'Linear':28} {'M x K':>16} {'calls/step':>10}  {'decode, N=1':40} prefill")
    for row in rows:
        shape = f"{row.linear.m} x {row.linear.k}"
        decode = row.decode or f"F.linear [{', '.join(row.reasons)}]"
        lines.append(f"{row.linear.name:28} {shape:>16} {row.linear.calls:>10}  {decode:40} {row.prefill or 'F.linear'}")
    if any(row.decode for row in rows):
        lines += ["", WHERE_ONE_ROW]
    if any(row.tune for row in rows):
        lines += ["", TUNE]
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Command line of `survey`. Exit 0: listed; 1: the model's shapes cannot be stated."""
    parser = argparse.ArgumentParser(prog="python -m vllm.dcu survey", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("config", type=Path, help="a model folder, or its config.json")
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel size (default: %(default)s)")
    parser.add_argument("--arch", default="gfx936", help="assume a device of this arch (default: %(default)s)")
    parser.add_argument("--dtype", default="auto", help="as for `vllm serve` (default: %(default)s)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    context = context_for(args.arch)
    assert context is not None, "an assumed device is there"
    config = read_config(args.config)
    dtype = model_dtype(config, args.dtype, weights_dtype(args.config) if args.config.is_dir() else "")
    rows = survey(config, context, args.tp, dtype)
    if args.json:
        data = {"device": context.arch, "simulated": context.simulated, "tp": args.tp, "dtype": dtype, "rows": [asdict(r) for r in rows]}
        print(json.dumps(data, indent=2))
    else:
        print(as_text(rows, context, args.tp, dtype))
    return 0
