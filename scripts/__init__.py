"""The tools of vLLM-for-gfx936: `python -m scripts VERB`, one verb a module."""
