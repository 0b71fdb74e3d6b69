"""LLMM1 on a CUDA GPU, for `python -m vllm.dcu verify --stand-in benchmarks/cuda_stand_in.py` and for `bench`: a rehearsal.

SKINNY names upstream's skinny_gemms.cu (by default the one in build/vllm). The device has 32 lanes: V2 must refuse K=5120 there.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks import cuda_llmm1  # noqa: E402  (needs the path above)

LABEL = "upstream's LLMM1 through a CUDA shim"
MARKS = ("LLGemm1_kernel",)

_folder = Path(tempfile.gettempdir()) / f"llmm1-on-cuda-{os.getuid()}"
cuda_llmm1.build_cuda(Path(os.environ.get("SKINNY") or ROOT / "build" / "vllm" / "csrc" / "rocm" / "skinny_gemms.cu"), _folder)
EXTENSION = str(_folder / "llmm1_on_cuda.so")
