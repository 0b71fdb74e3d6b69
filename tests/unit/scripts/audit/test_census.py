"""The census reads what a binding unit registers after preprocessing, and nothing that a header mentions."""

from __future__ import annotations

from scripts.audit.census import Op, registered, render

TEXT = """# 1 "/tree/csrc/torch_bindings.cpp"
# 1 "/torch/library.h" 1
m.def("not_ours(Tensor x) -> ()");
# 19 "/tree/csrc/torch_bindings.cpp" 2
static void TORCH_LIBRARY_init__C (torch::Library& ops); void TORCH_LIBRARY_init__C (torch::Library& ops) {
  ops.def(
      "paged_attention_v1("
      "    Tensor! out) -> ()");
  ops.impl("paged_attention_v1", torch::kCUDA, &paged_attention_v1);
  ops.def("hadacore_transform(Tensor! x, bool inplace) -> Tensor");
}
static void TORCH_LIBRARY_init__C_custom_ar (torch::Library& m); void TORCH_LIBRARY_init__C_custom_ar (torch::Library& m) {
  m.def("dispose", &dispose);
# 1 "/build/csrc/rocm/dcu_llmm1_schema.inc" 1
  m.def("LLMM1(Tensor in_a) -> Tensor");
# 30 "/tree/csrc/torch_bindings.cpp" 2
}
"""


def test_ops_libraries_and_functions_are_read() -> None:
    assert registered(TEXT, "csrc/torch_bindings.cpp") == {
        ("_C", "paged_attention_v1"): "paged_attention_v1",
        ("_C", "hadacore_transform"): "",
        ("_C_custom_ar", "dispose"): "dispose",
        ("_C_custom_ar", "LLMM1"): "",
    }


def test_the_document_counts_and_warns() -> None:
    text = render([Op("_C", "silu_and_mul", "csrc/activation_kernels.cu", "built"), Op("_rocm_C", "wvSplitK", "", "absent")], "0.18.1")
    assert "says nothing about its result on a DCU" in text
    assert "| `_rocm_C` | `wvSplitK` | - | not built for gfx936 |" in text
    assert "| upstream's, built for gfx936, not verified by this project | 1 |" in text
