"""The little of C++ that the contracts read: definitions, guards, and whether a guard holds."""

from __future__ import annotations

import pytest

from scripts.drift.contracts import cxx

TEXT = """\
// int LLMM1(int commented) { return 0; }
#ifdef A
template <typename T>
int LLMM1(T x, const char* s = ")}") {
  /* } */ return f(x);  // }
}
#else
int LLMM1(int declared);
#endif
void caller() { auto y = LLMM1(1); }
"""


def test_a_definition_is_found_whole_and_alone() -> None:
    spans = cxx.definitions(TEXT, "LLMM1")
    assert [TEXT[a:b].split("\n")[0] for a, b in spans] == ["template <typename T>"]
    assert TEXT[spans[0][0] : spans[0][1]].endswith("// }\n}")


def test_the_guards_around_a_place_are_in_order_with_else_negated() -> None:
    assert cxx.guards(TEXT, TEXT.index("template")) == ["defined(A)"]
    assert cxx.guards(TEXT, TEXT.index("declared")) == ["!(defined(A))"]
    assert cxx.guards(TEXT, TEXT.index("caller")) == []


@pytest.mark.parametrize(
    ("conditions", "defined", "result"),
    [
        (["!defined(SKIP)"], set(), True),
        (["!defined(SKIP)"], {"SKIP"}, False),
        (["defined(A) || defined(B) && !defined(C)"], {"B"}, True),
        (["(defined(A) || defined(B)) && !defined(C)"], {"A", "C"}, False),
        (["__CUDA_ARCH__ >= 800"], set(), None),
        (["__CUDA_ARCH__ >= 800", "defined(A)"], set(), False),
        ([], set(), True),
    ],
)
def test_a_guard_holds_fails_or_is_open(conditions: list[str], defined: set[str], result: bool | None) -> None:
    assert cxx.active(conditions, defined) is result
