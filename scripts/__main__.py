"""The tools of vLLM-for-gfx936. `python -m scripts help` lists the verbs."""

from __future__ import annotations

import sys

from scripts.cli import run

sys.exit(run(sys.argv[1:]))
