"""`_dcu_C::gemv` on a CUDA GPU: csrc/dcu/gemv.cu as it stands, compiled by nvcc, 32 lanes. A rehearsal: it opens nothing.

For `python -m vllm.dcu verify --kernel GEMV --stand-in benchmarks/cuda_gemv.py ...`, `bench`, and benchmarks/gemv_report.py.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from torch.utils import cpp_extension

ROOT = Path(__file__).resolve().parent.parent
LABEL = "csrc/dcu/gemv.cu through nvcc"
MARKS = ("dcu_gemv",)

_BINDING = """
#include <torch/library.h>
#include "dcu/ops.h"
TORCH_LIBRARY(_dcu_C, ops) {
  ops.def("gemv(Tensor weight, Tensor x, int variant) -> Tensor");
  ops.impl("gemv", c10::kCUDA, &dcu_gemv);
  ops.def("gemv_count(Tensor on) -> ()");
  ops.impl("gemv_count", c10::kCUDA, &dcu_gemv_count);
  ops.def("gemv_launches() -> Tensor", &dcu_gemv_launches);
}
"""

_folder = Path(tempfile.gettempdir()) / f"gemv-on-cuda-{os.getuid()}"
_folder.mkdir(exist_ok=True)
(_folder / "binding.cpp").write_text(_BINDING, encoding="utf-8")
cpp_extension.load(
    name="gemv_on_cuda",
    sources=[str(_folder / "binding.cpp"), str(ROOT / "csrc" / "dcu" / "gemv.cu")],
    extra_include_paths=[str(ROOT / "csrc")],
    build_directory=str(_folder),
    is_python_module=False,
    extra_cuda_cflags=["-O3", "--expt-relaxed-constexpr"],
)
EXTENSION = str(_folder / "gemv_on_cuda.so")
