"""The drift page and its documentation name every contract that exists."""

from __future__ import annotations

import json

from scripts.common.paths import ROOT
from scripts.drift import contracts
from scripts.drift.contracts import arch_sites
from scripts.drift.contracts.model import BLOCK, INFO, REVIEW, Finding, sort_findings
from scripts.drift.contracts.page import to_json, to_markdown

ROWS = [
    Finding(INFO, "pins", "a", "pyproject.toml", 3, "torch is required now."),
    Finding(BLOCK, "arch-truth", "b", "vllm/platforms/rocm.py", 7, "rocm._ON_X is new and true for gfx936.", "+_ON_X = True"),
    Finding(REVIEW, "names", "c", "vllm/x.py", 0, "a | b <c>"),
]


def test_the_documentation_has_a_row_for_every_contract() -> None:
    text = (ROOT / "docs" / "drift.md").read_text()
    identifiers = {module.ID for module in contracts.CONTRACTS} | {arch_sites.LITERAL}
    assert [name for name in sorted(identifiers) if f"| `{name}` |" not in text] == []


def test_block_comes_first_with_file_line_and_upstreams_text() -> None:
    page = to_markdown("0.18.1", "9.9.9", sort_findings(ROWS))
    table = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert table[0] == "| BLOCK | arch-truth | `vllm/platforms/rocm.py:7` | rocm._ON_X is new and true for gfx936. |"
    assert table[1] == "| REVIEW | names | `vllm/x.py` | a \\| b \\<c> |"
    assert "```diff\n+_ON_X = True\n```" in page


def test_the_json_is_stable_and_counts_every_level() -> None:
    data = to_json("0.18.1", "9.9.9", sort_findings(ROWS))
    assert data == to_json("0.18.1", "9.9.9", sort_findings(reversed(ROWS)))
    assert json.loads(data)["counts"] == {"BLOCK": 1, "NOT EVALUATED": 0, "REVIEW": 1, "INFO": 1}
