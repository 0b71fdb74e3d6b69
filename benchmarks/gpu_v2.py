"""V2 on a CUDA GPU: each of its limits refuses, by name, a kernel that is wrong in just that way; a right one passes.

    python3 benchmarks/gpu_v2.py --out DIR

A rehearsal: it says nothing of a gfx936 and opens nothing. Writes v2-h200.json and .md. Exit 1: a wrong kernel passed, or the right one did not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks.gpu_rehearsal import stub_vllm  # noqa: E402

stub_vllm()
from vllm.dcu.evidence.binding import Binding  # noqa: E402
from vllm.dcu.evidence.ladder import Outcome, Trial  # noqa: E402
from vllm.dcu.records.kernels import LLMM1  # noqa: E402
from vllm.dcu.records.record import Contract, Toolchain  # noqa: E402
from vllm.dcu.verify.rungs import numbers  # noqa: E402
from vllm.dcu.verify.rungs.stage import Stage, Subject  # noqa: E402

from scripts.rehearsal.wrong_kernels import ONE_WAY, WRONG, exact, last_row, only, unwritten  # noqa: E402


def page(data: dict[str, Any]) -> str:
    """The page of a report."""
    lines = [
        "# V2 refuses each planted kernel, on a CUDA GPU",
        "",
        f"Device: {data['device']}, torch {data['torch']}, `python3 benchmarks/gpu_v2.py`. A rehearsal: not gfx936, opens nothing. The kernels are those of",
        "`scripts/rehearsal/wrong_kernels.py`, which the CPU's tests plant as well (`tests/runtime/test_verify_numbers.py`).",
        "",
        "| planted kernel | V2 | why | as it must be |",
        "|---|---|---|---|",
    ]
    lines += [f"| {r['plant']} | {r['outcome'].lower()} | {r['why'] or ' '} | {'yes' if r['good'] else '**no**'} |" for r in data["rows"]]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run every plant and the control on the device that `--device` names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    short = Subject("test", LLMM1, Contract("bfloat16", 1, 512, 2048, args={"rows_per_block": 4}))
    mission = replace(short, contract=replace(short.contract, m=34816))
    binding = Binding("", args.device, Toolchain(torch.__version__, "", "0.18.1"), "", "", "", "", "", simulated="planted kernels")
    plants = [
        ("right", exact, short, "", ""),
        ("the last block unwritten", unwritten, short, "", ""),
        ("last row of the last block", last_row, mission, "", ""),
    ]
    plants += [(name, kernel, short, "", "") for name, kernel in WRONG.items()]
    plants += [(f"{data}: {limit} ({case})", only(data, planted), short, case, limit) for data, planted, case, limit in ONE_WAY]
    rows = []
    for name, kernel, subject, case, limit in plants:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            stage = Stage(binding, subject, args.device, kernel, None, None, no_device="")
            result = numbers.right_numbers(stage, Trial(binding, Path(folder) / "raw", lambda line: None))
        refused = result.outcome is Outcome.FAILED and case in result.why and limit in result.why
        good = result.outcome is Outcome.PASSED if name == "right" else refused
        rows.append(
            {"plant": name, "outcome": result.outcome.name, "why": result.why, "good": good, "seconds": round(time.monotonic() - begun, 1)}
        )
        print("ok  " if good else "FAIL", name, "|", result.why, flush=True)
    device = torch.cuda.get_device_name(0) if args.device == "cuda" else "CPU"
    args.out.mkdir(parents=True, exist_ok=True)
    data = {"device": device, "torch": torch.__version__, "rows": rows}
    (args.out / "v2-h200.json").write_text(json.dumps(data, indent=1) + "\n")
    (args.out / "v2-h200.md").write_text(page(data))
    return 0 if all(row["good"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
