"""`tune`'s measurement on a CUDA GPU, our own kernel through CUDA: a Qwen3.5-27B's seven shapes, three N. A rehearsal: it opens nothing.

    python3 benchmarks/tune_rehearsal.py --out DIR          # on the GPU: DIR/tune-h200.json, .md and the picture
    python3 benchmarks/tune_rehearsal.py --page DIR/tune-h200.json --out docs/evidence     # anywhere: the page of a JSON again

32 lanes and CUDA: it says nothing of a gfx936. LLMM1 is left out, because a 32-wide device computes it wrong at these K.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from scripts.common.overlay import overlay_module  # noqa: E402

BORDER = "A rehearsal on a 32-wide device through CUDA: not gfx936, not HIP, opens nothing"
TITLE = "tune on a CUDA GPU: Qwen3.5-27B"
CONFIG = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "text_config": {
        "dtype": "bfloat16", "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64, "full_attention_interval": 4,
        "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "attn_output_gate": True, "linear_num_key_heads": 16,
        "linear_key_head_dim": 128, "linear_num_value_heads": 48, "linear_value_head_dim": 128, "vocab_size": 248320,
    },
}  # fmt: skip
ROWS = (1, 2, 4)


def measured(device: str) -> dict[str, Any]:
    """Compile, measure, and say what was seen as plain data."""
    import torch

    importlib.import_module("benchmarks.gpu_rehearsal").stub_vllm()
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    began = time.monotonic()
    if device == "cuda":
        importlib.import_module("benchmarks.cuda_gemv")
    built = time.monotonic() - began
    measure = overlay_module("tune.measure")
    plan = overlay_module("tune.plan")
    report = overlay_module("tune.report")
    timing = overlay_module("verify.rungs.timing")
    items = plan.make_plan(CONFIG, plan.Served(ROWS)).items
    found: list[Any] = []

    def one(item: Any, clock: Any) -> None:
        every = [choice for choice in plan.choices(item) if choice.kernel in ("", "GEMV")]
        found.append(measure.compete(item, clock, every))
        print(f"[{len(found)}/{len(items)}] {item.label}: {found[-1].why or found[-1].winners[0].choice.name}", flush=True)

    if device == "cuda":
        measure.on_device(items, {"GEMV": torch.ops._dcu_C.gemv}, device, one)
    else:
        for item in items:
            one(item, measure.PlantedClock(item, lambda dtype, m, k, n, choice: m * k / (1e6 if choice == "GEMV 9" else 9e5)))
    name = torch.cuda.get_device_name() if device == "cuda" else "the CPU"
    notes = (
        f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}, torch {torch.__version__}, {round(time.monotonic() - began)} s in all, "
        f"{round(built)} of them to compile; `F.linear` is what torch's CUDA library makes of it.",
    )
    return dict(report.as_json(report.Report(f"{name} ({BORDER})", timing.read_bandwidth(device), tuple(found), notes=notes)))


def write(data: dict[str, Any], out: Path, name: str) -> None:
    """JSON, page and, where matplotlib is installed, the picture.

    Raises:
        vllm.dcu.records.strict.StrictError: `data` is not what `measured` says.
    """
    report = overlay_module("tune.report")
    typed = overlay_module("records.typed")
    ladder = overlay_module("evidence.ladder")
    of = overlay_module("tune.found")
    found = tuple(typed.load(of.Found, one) for one in data["measured"])
    seen = report.Report(data["device"], typed.load(ladder.Measure, data["read"]), found, notes=tuple(data["notes"]))
    out.mkdir(parents=True, exist_ok=True)
    pictures = [file for file in report.draw(seen, out, name) if file.endswith(".svg")]
    for file in out.glob(f"{name}.png"):
        file.unlink()
    (out / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    (out / f"{name}.md").write_text(report.as_markdown(seen, TITLE, pictures), encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--page", type=Path, metavar="JSON", help="measure nothing: the page of this file")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: try this script itself, with planted times")
    options = parser.parse_args(argv)
    data = json.loads(options.page.read_text(encoding="utf-8")) if options.page else measured(options.device)
    write(data, options.out, "tune-h200")
    print((options.out / "tune-h200.md").read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
