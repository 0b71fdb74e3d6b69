"""TEST ONLY, a pytest plugin for upstream's tests: an empty module for the compiled library that `vllm.platforms.cuda` imports."""

import sys
import types

sys.modules.setdefault("vllm._C", types.ModuleType("vllm._C"))
