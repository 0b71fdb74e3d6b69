"""After the vendor's plugin: an installed vLLM that was rewritten, patched in memory or half restored decides nothing, and says so once.

The plugin is the stand-in of `scripts/rehearsal/vendor`; the vLLM is the installed build, file by file, in a folder that may be written.
"""

from __future__ import annotations

import compileall
import importlib.util
import os
import py_compile
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from vllm.dcu.device.footing import RESTS_ON, look

from scripts.rehearsal.scenarios import own_copy
from tests.runtime.platform_scenarios import DCU, Ask, installed_package
from tests.runtime.vendor import LINEAR, ROCM, UTILS, VENDOR, edit, said
from tests.troubleshooting import row

WIDENED = ('"gfx90a", "gfx942", "gfx950"]', '"gfx90a", "gfx942", "gfx950", "gfx936", "gfx938"]')

START = """
    from vllm.platforms import current_platform
    import vllm.model_executor.layers.utils as utils
    from vllm.dcu import gate
    from vllm.platforms import rocm

    def seen():
        active = gate.active()
        return {
            "platform": type(current_platform).__qualname__,
            "gate": active is not None,
            "shut": active is not None and all(
                set(r.value for r in reasons) & {"build-edited", "build-unknown", "negative-record"} for reasons in active.standing.values()
            ),
            "open predicates": sorted(n for n in vars(rocm) if n.startswith("on_") and n != "on_gfx936" and getattr(rocm, n)()),
            "dispatch": utils.dispatch_unquantized_gemm().__name__,
        }
    result = seen()
"""
AS_BUILT = {"platform": "DcuRocmPlatform", "gate": True, "shut": False, "open predicates": [], "dispatch": "rocm_unquantized_gemm"}
SHUT = AS_BUILT | {"shut": True}


def asked(ask: Ask, code: str = START, **given: Any) -> tuple[Any, str]:
    answer = ask.answer(code, kfd=ask.sysfs(DCU), **given)
    assert answer.error is None, f"{answer.error}\n{answer.traceback}\n{answer.log}"
    return answer.value, answer.log


def with_plugin(means: str, **env: str) -> dict[str, Any]:
    return {"path": (VENDOR,), "env": {"STAND_IN_HCU": means, **env}}


def test_the_plugins_whole_life(there: Ask, tree: Path) -> None:
    """Before, with it, after it, and after the remedy: as built, not ours, shut and named, as built again."""
    before, log = asked(there)
    assert (before, said(log)) == (AS_BUILT, [])
    during, log = asked(there, **with_plugin("rewrite"))
    assert during == {
        "platform": "HipStandIn",
        "gate": False,
        "shut": False,
        "open predicates": ["on_gfx9"],
        "dispatch": "default_unquantized_gemm",
    }
    (line,) = said(log, "Nothing of vLLM for gfx936 is active under it")
    assert "stand_in_hcu_platform.HipStandIn of vllm-hcu-stand-in 0.18.1" in line
    after, log = asked(there)
    assert after == SHUT | {"dispatch": "default_unquantized_gemm"}
    (line,) = said(log)
    assert f"{tree}/vllm/envs.py is not the file that was built (mark PATCHED_vllm_envs_patch_0) (and 2 more)" in line
    assert "pip install --force-reinstall --no-deps of the wheel of vllm 0.18.1+gfx936" in line
    for name in RESTS_ON:
        shutil.copy2(installed_package() / name, tree / "vllm" / name)
    again, log = asked(there)
    assert (again, said(log)) == (AS_BUILT, [])


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (ROCM, *WIDENED),
        (ROCM, "    return _ON_GFX9\n", "    return True\n"),
        (ROCM, "_ON_GFX950 = ", "_ON_GFX950 = True or "),
        (ROCM, "resolve_gcn_arch(_query_gcn_arch_from_amdsmi, _get_gcn_arch)", "'gfx936'; _ON_GFX9 = True  # "),
        (UTILS, "        return rocm_unquantized_gemm\n", "        return default_unquantized_gemm\n"),
        (LINEAR, "return dispatch_unquantized_gemm()(layer", "return torch.nn.functional.linear(x, layer.weight, bias) or (layer"),
        ("platforms/__init__.py", "@also_without_amdsmi\n", ""),
        ("envs.py", '"VLLM_ROCM_USE_SKINNY_GEMM": lambda: (', '"VLLM_ROCM_USE_SKINNY_GEMM": lambda: True or ('),
    ],
)
@pytest.mark.parametrize("mark", ["", "PATCHED_vllm_any_patch_0"])
def test_an_edit_of_any_kind_shuts_every_capability_and_is_named(there: Ask, tree: Path, name: str, old: str, new: str, mark: str) -> None:
    edit(tree, name, old, new, mark)
    found, log = asked(there, amdsmi="gfx936")
    assert (found["shut"], found["open predicates"]) == (True, []), log
    (line,) = said(log)
    assert f"/{name} is not the file that was built ({f'mark {mark}' if mark else 'no mark'})" in line


def test_a_platform_without_our_hook_opens_no_set_either(there: Ask, tree: Path) -> None:
    edit(tree, "platforms/__init__.py", "@also_without_amdsmi\n", "")
    edit(tree, ROCM, "    return _ON_GFX9\n", "    return True\n")
    assert asked(there, amdsmi="gfx936")[0] == SHUT | {"platform": "RocmPlatform"}


def test_a_widened_set_says_no_even_to_who_imports_rocm_first(there: Ask, tree: Path) -> None:
    edit(tree, ROCM, *WIDENED, "PATCHED_vllm_platforms_rocm_patch_0")
    code = "from vllm.platforms.rocm import _ON_GFX9, on_gfx9, on_gfx936; result = [_ON_GFX9, on_gfx9(), on_gfx936()]"
    assert asked(there, code)[0] == [False, False, True]


def test_the_widened_set_is_the_plugins_own_while_it_has_the_platform(there: Ask, tree: Path) -> None:
    edit(tree, ROCM, *WIDENED, "PATCHED_vllm_platforms_rocm_patch_0")
    code = "import vllm.platforms.rocm as r; result = r.on_gfx9()"
    assert asked(there, code, **with_plugin(""))[0] is True
    assert asked(there, code, **with_plugin("", VLLM_PLUGINS=""))[0] is False, "left out: it has no platform"


def test_nothing_of_ours_is_active_under_a_plugin_that_was_not_asked_for(there: Ask) -> None:
    """Also where rocm.py happens to be loaded, so that the arch is known."""
    found, log = asked(there, "\n    import vllm.platforms.rocm" + START, **with_plugin(""))
    assert found["gate"] is False
    assert len(said(log, "Nothing of vLLM for gfx936 is active")) == 1


def test_force_does_not_open_an_edited_build(there: Ask, tree: Path) -> None:
    edit(tree, UTILS, "logger = init_logger", "logger  = init_logger")
    force = {"VLLM_DCU_CAPABILITIES": "llmm1-gfx936-bf16-n1-m34816-k5120=force"}
    assert asked(there, env=force)[0]["shut"] is True


@pytest.mark.parametrize(
    ("patch", "phrase"),
    [
        ("utils.dispatch_unquantized_gemm = lambda: utils.default_unquantized_gemm", "utils.py: dispatch_unquantized_gemm"),
        ("utils.rocm_unquantized_gemm = utils.default_unquantized_gemm", "utils.py: rocm_unquantized_gemm"),
        ("linear.dispatch_unquantized_gemm = print", "linear.py: dispatch_unquantized_gemm"),
        ("linear.UnquantizedLinearMethod.apply = lambda *a: None", "linear.py: UnquantizedLinearMethod.apply"),
        ("embedding.dispatch_unquantized_gemm = print", "vocab_parallel_embedding.py: dispatch_unquantized_gemm"),
    ],
)
def test_functions_that_were_replaced_in_memory_are_found_before_the_first_forward(there: Ask, patch: str, phrase: str) -> None:
    code = (
        START
        + f"""
    import vllm.model_executor.layers.linear as linear
    import vllm.model_executor.layers.vocab_parallel_embedding as embedding
    from vllm.dcu.device import footing
    before = seen()["shut"]
    footing.look_again(gate.logger)
    untouched = seen()["shut"]
    dispatch = utils.dispatch_unquantized_gemm
    {patch}
    for _ in range(2):
        footing.look_again(gate.logger)
    utils.dispatch_unquantized_gemm = dispatch
    result = [before, untouched, seen()["shut"]]
    """
    )
    found, log = asked(there, code)
    assert found == [False, False, True]
    (line,) = said(log)
    assert f"model_executor/layers/{phrase} was replaced in memory" in line


def test_row_replaced(there: Ask) -> None:
    code = (
        START
        + """
    from vllm.dcu.device.footing import replaced
    utils.dispatch_unquantized_gemm = print
    result = replaced()
    """
    )
    assert row("replaced").symptom in asked(there, code)[0][0]


def test_the_platform_looks_again_when_attention_is_chosen(there: Ask) -> None:
    code = (
        START
        + """
    utils.dispatch_unquantized_gemm = lambda: utils.default_unquantized_gemm
    try:
        current_platform.get_attn_backend_cls(None, None)
    except Exception:
        pass
    result = seen()["shut"]
    """
    )
    found, log = asked(there, code)
    assert found is True
    assert len(said(log)) == 1


def test_predicates_that_were_set_in_memory_are_closed_and_named(there: Ask) -> None:
    code = "import vllm.platforms.rocm as r; r._ON_GFX9 = True; r.on_mi3xx = lambda: True\n" + START
    found, log = asked(there, "\n    ".join(["", *code.splitlines()[:1]]) + START)
    assert found["open predicates"] == []
    (line,) = said(log, "are closed")
    assert "_ON_GFX9, on_mi3xx of vllm.platforms.rocm" in line


def test_only_the_compiled_form_is_left(there: Ask, tree: Path) -> None:
    path = tree / "vllm" / UTILS
    py_compile.compile(str(path), cfile=str(path.with_suffix(".pyc")))
    path.unlink()
    found, log = asked(there)
    assert found["shut"] is True
    assert f"{path} is missing" in said(log)[0]


def test_a_restored_file_whose_compiled_form_is_never_compared(there: Ask, tree: Path) -> None:
    """As reproducible images have them: Python runs the compiled edit although the text is the build's again."""
    path = tree / "vllm" / UTILS
    built = path.read_text()
    edit(tree, UTILS, "        return rocm_unquantized_gemm\n", "        return default_unquantized_gemm\n")
    compileall.compile_file(str(path), quiet=1, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    path.write_text(built)
    found, log = asked(there)
    assert (found["shut"], found["dispatch"]) == (True, "default_unquantized_gemm")
    assert f"{path} is not what runs: {importlib.util.cache_from_source(str(path))} was compiled from another text" in said(log)[0]


def test_compiled_code_that_only_looks_like_its_text_is_found_by_manifest(there: Ask, tree: Path) -> None:
    path = tree / "vllm" / UTILS
    built, stat = path.read_text(), path.stat()
    edited = built.replace("        return rocm_unquantized_gemm\n", "        return default_unquantized_gemm\n")
    trimmed = edited.replace("SPDX-License-Identifier: Apache-2.0", "SPDX-License-Identifier: Apache", 1)
    path.write_text(trimmed + " " * (len(built) - len(trimmed)))
    os.utime(path, (stat.st_atime, stat.st_mtime))
    compileall.compile_file(str(path), quiet=1)
    path.write_text(built)
    os.utime(path, (stat.st_atime, stat.st_mtime))
    code = "from vllm.dcu.ask.manifest import looked_through; import vllm; from pathlib import Path\n"
    code += "result = [p for p in looked_through(Path(vllm.__path__[0]), []).problems if 'holds other code' in p]"
    (problem,) = asked(there, code)[0]
    assert problem.startswith(importlib.util.cache_from_source(str(path)))


def test_without_a_manifest_nothing_opens_but_by_force(there: Ask, tree: Path) -> None:
    """A source tree, an editable install."""
    own_copy(tree, "dcu/manifest.json").unlink()
    found, log = asked(there)
    assert found["shut"] is True
    assert "has no build manifest" in said(log)[0]
    force = {"VLLM_DCU_CAPABILITIES": "llmm1-gfx936-bf16-n1-m34816-k5120=force"}
    assert asked(there, env=force)[0]["shut"] is False


def test_links_and_a_read_only_folder_are_no_fault(there: Ask, tree: Path) -> None:
    for path in (tree / "vllm").rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o555)
    try:
        assert asked(there, **with_plugin(""))[0]["platform"] == "HipStandIn"
        assert asked(there)[0] == AS_BUILT
    finally:
        for path in (tree / "vllm").rglob("*"):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)


def test_a_zipped_package_is_read_through_its_loader(tmp_path: Path, tree: Path) -> None:
    edit(tree, ROCM, *WIDENED, "PATCHED_vllm_platforms_rocm_patch_0")
    archive = tmp_path / "site.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        for name in (*RESTS_ON, "__init__.py", "dcu/manifest.json"):
            zipped.write(tree / "vllm" / name, f"vllm/{name}")
    import sys
    import zipimport
    from unittest.mock import patch

    class Package:
        __loader__ = zipimport.zipimporter(str(archive))

    with patch.dict(sys.modules, {"vllm": Package}):
        (phrase,) = [p for p in look(archive / "vllm").edits if "not what runs" not in p]
    assert "platforms/rocm.py is not the file that was built (mark PATCHED_vllm_platforms_rocm_patch_0)" in phrase


def test_the_first_look_takes_about_a_millisecond() -> None:
    import time

    best = min(_timed(time.perf_counter) for _ in range(5))
    assert best < 0.01, f"{best * 1000:.1f} ms"


def _timed(clock: Any) -> float:
    start = clock()
    look(installed_package())
    return float(clock() - start)


def test_manifest_names_the_marks_in_every_vllm_on_the_path(there: Ask, tree: Path, tmp_path: Path) -> None:
    stock = tmp_path / "stock"
    (stock / "vllm" / "platforms").mkdir(parents=True)
    (stock / "vllm" / "__init__.py").write_text("")
    (stock / "vllm" / "platforms" / "rocm.py").write_text("x = 1\n# PATCHED_vllm_platforms_rocm_patch_0\n")
    asked(there, **with_plugin("rewrite"))
    code = f"""
    from vllm.dcu.ask.manifest import looked_through; import vllm; from pathlib import Path
    found = looked_through(Path(vllm.__path__[0]), [{str(tree)!r}, {str(stock)!r}])
    result = [found.problems, found.notes]
    """
    problems, notes = asked(there, code)[0]
    for name in (ROCM, UTILS, "envs.py", "v1/engine/core.py"):
        assert any(f"{name} is not the file that was built (mark PATCHED_vllm_" in p for p in problems), name
    assert any("pip install --force-reinstall --no-deps" in p for p in problems)
    assert any(
        f"a plugin has rewritten 1 file(s) of it: {stock}/vllm/platforms/rocm.py (mark PATCHED_vllm_platforms_rocm_patch_0)" in n
        for n in notes
    )
