"""Beside the vendor's plugin: asked for by name, the gate stands at each unquantized layer of a loaded model, whatever computes it there.

The plugin is the stand-in of `scripts/rehearsal/vendor`; tensors lie on the CPU, the operator, the code object and HIP's version are given.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.rehearsal.scenarios import own_copy
from tests.runtime.platform_scenarios import DCU, Ask
from tests.runtime.vendor import LINEAR, VENDOR, edit, said
from tests.troubleshooting import row

HERE = Path(__file__).parent
ID = "llmm1-gfx936-bf16-n1-m34816-k5120"
FORCED = f"{ID}=force"
ASKED = "import beside_model as b\nresult = b.asked(1, 1, 2)"


def seen(ask: Ask, code: str = ASKED, means: str = "", beside: str | None = "vllm-hcu-stand-in", **env: str) -> tuple[Any, str]:
    asked = {} if beside is None else {"VLLM_DCU_BESIDE": beside}
    environ = {"STAND_IN_HCU": means, "STAND_IN_HCU_DEVICE": "cpu tensors", **asked, **env}
    answer = ask.answer(code, kfd=ask.sysfs(DCU), path=(VENDOR, HERE), env=environ)
    assert answer.error is None, f"{answer.error}\n{answer.traceback}\n{answer.log}"
    return answer.value, answer.log


@pytest.mark.parametrize("means", ["", "rewrite", "import", "method", "import,method"])
def test_the_gate_stands_whichever_function_the_plugin_chose(there: Ask, means: str) -> None:
    found, log = seen(there, means=means, VLLM_DCU_CAPABILITIES=FORCED)
    assert (found["native"], found["counts"].get("hit"), found["counts"].get("rows")) == (2, 2, 1), log
    assert found["the plugin's"] == ("method" in means), "what the gate does not take is the plugin's to compute"
    assert "nothing was verified beside" in said(log, "FORCED OPEN")[0]
    (line,) = said(log, "the gate stands at 1 unquantized layer(s)")
    assert "beside stand_in_hcu_platform.HipStandIn of vllm-hcu-stand-in 0.18.1" in line
    assert ("1 of them with a function of the plugin's" in line) == ("method" in means)
    assert len(said(log, "leaves on what vLLM for gfx936 keeps shut, and it is not ours to change there: custom all-reduce")) == 1


def test_without_the_variable_all_is_the_plugins(there: Ask) -> None:
    found, log = seen(there, means="rewrite", beside=None, VLLM_DCU_CAPABILITIES=FORCED)
    assert (found["native"], found["standing"]) == (0, None)
    assert len(said(log, "Nothing of vLLM for gfx936 is active under it")) == 1
    assert len(said(log, "custom all-reduce")) == 1


@pytest.mark.parametrize(
    ("env", "means", "words"),
    [
        (
            {"VLLM_DCU_BESIDE": "vllm-hcu"},
            "",
            "asks for vllm-hcu, and the platform is stand_in_hcu_platform.HipStandIn of vllm-hcu-stand-in 0.18.1",
        ),
        ({"VLLM_DCU_BESIDE": "vllm-hcu-stand-in", "VLLM_PLUGINS": ""}, "", "and the platform is vllm.dcu.platform.DcuRocmPlatform"),
        ({"VLLM_DCU_BESIDE": "yes"}, "", "'yes' names no package"),
    ],
)
def test_a_pair_that_is_not_there_stops_the_start(there: Ask, env: dict[str, str], means: str, words: str) -> None:
    answer = there.answer(ASKED, kfd=there.sysfs(DCU), path=(VENDOR, HERE), env={"STAND_IN_HCU_DEVICE": "cpu tensors", **env})
    assert (answer.error or "").startswith("EnvError: VLLM_DCU_BESIDE"), answer.log
    assert words in (answer.error or "")


def test_row_not_beside(there: Ask) -> None:
    answer = there.answer(ASKED, kfd=there.sysfs(DCU), path=(VENDOR, HERE), env={"VLLM_DCU_BESIDE": "vllm-hcu"})
    assert row("not_beside").symptom in (answer.error or "")


def test_row_beside_unverified(there: Ask) -> None:
    _, log = seen(there, "import beside_model as b\nresult = b.asked()")
    assert f"[{row('beside_unverified').symptom}]" in said(log, "is closed")[0]


EVIDENCE = """
import beside_model as b
from dataclasses import replace
from pathlib import Path
import os
b.device()
import vllm.model_executor.layers.utils
import vllm.dcu.evidence.binding as binding, vllm.dcu.evidence.site as site
from vllm.dcu import gate
from vllm.dcu.dispatch.context import observe_context
from vllm.dcu.evidence.ladder import failed, passed
from vllm.dcu.evidence.store import RUNG_IDS, Entry, add
whole = binding.Binding
def known(**fields):
    given = {"hip_runtime": "libamdhip64.so.6 " + "aa" * 32, "driver": "hydcu 6.2", "extension": "ee" * 32}
    return whole(**{**fields, **given})
binding.Binding = known
store = Path(os.environ["VLLM_DCU_EVIDENCE"])
def standing():
    context = observe_context()
    return sorted(r.value for r in gate.build(context).standing[b.ID])
def keep(platform, **changed):
    context = observe_context()
    bound = binding.observe_binding(context.arch, context.toolchain, platform=platform or "")
    rungs = {name: changed.get(name) or passed({"seen": 1}) for name in RUNG_IDS}
    store.unlink(missing_ok=True)
    add(store, Entry(b.ID, bound, rungs, dict.fromkeys(rungs, "2026-11-30T08:00:00Z")))
    return standing()
pair = observe_context().beside
result = {
    "pair": pair,
    "none": standing(),
    "without the plugin": keep(""),
    "this pair": keep(pair),
    "another version": keep(pair.replace("0.18.1", "0.18.2")),
    "failed without the plugin": keep("", V2=failed("wrong numbers", {"error": 1})),
    "unfinished": keep(pair, V5=failed("x", {"a": 1})),
}
"""


def test_evidence_counts_for_the_pair_that_it_was_seen_with_and_no_other(there: Ask, tmp_path: Path) -> None:
    given = {"VLLM_DCU_EVIDENCE": str(tmp_path / "evidence.json")}
    found, _ = seen(there, EVIDENCE, **given)
    assert found.pop("pair") == "stand_in_hcu_platform.HipStandIn of vllm-hcu-stand-in 0.18.1"
    assert found == {
        "none": ["beside-unverified"],
        "without the plugin": ["beside-unverified"],
        "this pair": [],
        "another version": ["site-lapsed"],
        "failed without the plugin": ["site-failed"],
        "unfinished": ["site-failed"],
    }
    (tmp_path / "evidence.json").unlink()
    rewritten, _ = seen(there, EVIDENCE, means="rewrite", **given)
    assert ", rewrote " in rewritten.pop("pair"), "what the plugin rewrote is part of the pair"
    assert rewritten == found


def test_evidence_beside_a_plugin_neither_opens_nor_shuts_without_it(there: Ask, tmp_path: Path) -> None:
    code = EVIDENCE.replace("pair = observe_context().beside", 'pair = "hcu.Platform of vllm-hcu 1"')
    found, _ = seen(there, code, beside=None, VLLM_PLUGINS="", VLLM_DCU_EVIDENCE=str(tmp_path / "evidence.json"))
    assert {name: found[name] for name in ("none", "without the plugin", "this pair", "unfinished")} == {
        "none": [], "without the plugin": [], "this pair": [], "unfinished": ["site-failed"],
    }  # fmt: skip


def test_an_edit_that_is_not_the_plugins_shuts_beside_it_too(there: Ask) -> None:
    edit(there.tree, LINEAR, "logger = init_logger", "logger  = init_logger")
    found, log = seen(there, means="rewrite", VLLM_DCU_CAPABILITIES=FORCED)
    assert found["standing"][0] == "build-edited"
    assert found["native"] == 0
    assert f"{LINEAR} is not the file that was built (no mark)" in said(log, "every capability is shut")[0]


def test_a_weight_in_another_layout_is_left_to_the_plugin_and_said(there: Ask) -> None:
    code = """
    import beside_model as b, torch
    b.device()
    import vllm.model_executor.layers.utils
    layers = [b.Layer(64, 32, transposed=True), b.Layer(32, 32, transposed=True), b.Layer(64, 32)]
    model = b.loaded(*layers)
    x = torch.ones(1, 32, dtype=torch.bfloat16)
    result = [[hasattr(layer, "dcu_path"), list(layer(x).shape) if i < 2 else None] for i, layer in enumerate(model)]
    """
    found, log = seen(there, code, means="method,transposed")
    assert found == [[False, [1, 64]], [False, [1, 32]], [True, None]]
    assert len(said(log, "2 whose weight is stored in another layout are left to the plugin")) == 1


def test_a_method_that_serves_several_layers_computes_for_each_its_own(there: Ask) -> None:
    code = """
    import beside_model as b, torch
    b.device()
    import vllm.model_executor.layers.utils
    layers = [b.Layer(64, 32), b.Layer(64, 32)]
    layers[1].quant_method = layers[0].quant_method
    layers[1].weight.data += 1
    x = torch.ones(2, 32, dtype=torch.bfloat16)
    model = b.loaded(*layers)
    again = b.loaded(*layers)
    result = [layer(x)[0, 0].item() for layer in model], len({layer.dcu_path for layer in model}), type(layers[0].quant_method).__name__
    """
    assert seen(there, code, means="method")[0] == [[0.0, 32.0], 2, "UnquantizedLinearMethod"]
    assert seen(there, code)[0] == [[0.0, 32.0], 1, "UnquantizedLinearMethod"]


def test_one_opaque_operator_in_the_graph_and_the_choice_follows_n(there: Ask) -> None:
    code = """
    import beside_model as b, torch
    b.device()
    import vllm.model_executor.layers.utils
    from vllm.dcu import gate
    model = b.loaded(b.Layer(), b.Layer())
    assert model[0].dcu_path == model[1].dcu_path, "layers with one function have one graph"
    graphs = []
    def backend(graph, inputs):
        graphs.append([node.name for node in graph.graph.nodes if "dcu_linear" in str(node.target)])
        return graph
    run = torch.compile(model[0], backend=backend, fullgraph=True, dynamic=True)
    for n in (2, 1, 3, 1):
        run(torch.zeros(n, b.K, dtype=torch.bfloat16))
    with torch.device("meta"):
        shape = model[0].quant_method.apply(model[0].to("meta"), torch.empty(1, 3, b.K, dtype=torch.bfloat16)).shape
    counts = [c.value for c in gate.active().tally.snapshot() if c.key.kind == "hit"]
    result = [graphs, len(b.native), counts, list(shape), isinstance(model[0].quant_method, b.torch.nn.Module)]
    """
    (graphs, native, counts, shape, _), _ = seen(there, code, VLLM_DCU_CAPABILITIES=FORCED)
    assert all(len(names) == 1 for names in graphs)
    assert len(graphs) <= 2, "no graph per N"
    assert (native, counts, shape) == (2, [2], [1, 3, 34816])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_decide_alike(there: Ask, method: str) -> None:
    code = f"""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    import beside_model as b
    with ProcessPoolExecutor(1, multiprocessing.get_context({method!r})) as pool:
        result = pool.submit(b.asked, 1, 2).result()
    """
    found, _ = seen(there, code, means="import", VLLM_DCU_CAPABILITIES=FORCED)
    assert (found["native"], found["counts"]["hit"], found["counts"]["rows"]) == (1, 1, 1)


def test_batch_invariant_mode_shuts_it_and_leaves_the_plugins_own_method(there: Ask) -> None:
    found, log = seen(there, "import beside_model as b\nresult = b.asked()", VLLM_DCU_CAPABILITIES=FORCED, VLLM_BATCH_INVARIANT="1")
    assert (found["native"], found["standing"]) == (0, ["batch-invariant"])
    assert len(said(log, "1 of them with a function of the plugin's")) == 1


def test_the_variable_is_part_of_the_compile_caches_key(there: Ask) -> None:
    code = "import vllm.envs as e; result = [e.VLLM_DCU_BESIDE, e.compile_factors()['VLLM_DCU_BESIDE']]"
    assert seen(there, code, beside="Vllm_Hcu")[0] == ["vllm-hcu", "vllm-hcu"]


def test_v0_accepts_this_pair_and_says_so(there: Ask, tmp_path: Path) -> None:
    code = f"""
    import beside_model as b
    b.device()
    from pathlib import Path
    import vllm, vllm.platforms
    vllm.platforms.current_platform
    from vllm.dcu.dispatch.context import observe_context
    from vllm.dcu.evidence.binding import observe_binding
    from vllm.dcu.evidence.ladder import Trial
    from vllm.dcu.records.catalog import records_by_id
    import vllm.dcu.verify.rungs.build as v0
    from vllm.dcu.verify.rungs.stage import Stage, subject_of
    context = observe_context()
    examine = v0.examine
    v0.examine = lambda package: examine(package, [{str(there.tree)!r}])  # without the vllm of this machine's own environment
    def climbed(platform):
        bound = observe_binding(context.arch, context.toolchain, platform=platform)
        stage = Stage(bound, subject_of(records_by_id()[b.ID]), "cpu", None, None, None)
        found = v0.build_that_runs(stage, Trial(bound, Path({str(tmp_path)!r}) / str(bool(platform)), print))
        return [found.outcome.value, found.why, str(found.figures.get("beside"))]
    result = [climbed(context.beside), climbed("")]
    """
    own_copy(there.tree, "v1/engine/core.py").with_name("of_the_plugin.py").symlink_to(VENDOR / "stand_in_hcu_platform.py")
    manifest = own_copy(there.tree, "dcu/manifest.json")  # the tree is one for a GPU, without the CPU's libraries
    data = json.loads(manifest.read_text())
    data["files"] = {name: digest for name, digest in data["files"].items() if not name.endswith(".so")}
    manifest.write_text(json.dumps(data | {"version": "0.18.1+gfx936.1"}))
    (accepted, refused), _ = seen(there, code, means="rewrite")
    assert accepted[0] == "passed", accepted
    assert "of vllm-hcu-stand-in 0.18.1, rewrote " in accepted[2]
    assert "this pair is accepted, and no other; 4 file(s) carry its marks" in accepted[2]
    assert refused[0] == "failed"
    (there.tree / "vllm" / "v1" / "engine" / "of_nobody.py").write_text("")
    assert "of_nobody.py does not belong to the build" in seen(there, code, means="rewrite")[0][0][1]
