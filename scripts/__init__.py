"""The tools of vLLM-for-gfx936: `python -m scripts VERB`, one verb a module."""

import sys
from pathlib import Path

# `vllm.dcu` for the tools' own environment, where no vLLM is installed; behind everything, so that an installed one is found first.
sys.path.append(str(Path(__file__).resolve().parents[1] / "overlay"))
