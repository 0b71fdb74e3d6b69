"""A DCU is found with or without amdsmi, nothing else is taken for one, and no device is initialised on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.rehearsal.scenarios import Zygote
from tests.runtime.platform_scenarios import AMD, DCU, HYGON, Ask

PLATFORM = """
    import torch

    def never(*_):
        raise AssertionError("the device was initialised")

    torch.cuda._lazy_init = never
    from vllm.platforms import current_platform as platform, rocm
    from vllm.dcu.detect import arch_source

    capability = platform.get_device_capability()
    result = {
        "class": type(platform).__qualname__,
        "is RocmPlatform": isinstance(platform, rocm.RocmPlatform),
        "enum": platform._enum.name,
        "arch": rocm._GCN_ARCH,
        "on_gfx936": rocm.on_gfx936(),
        "capability": [capability.major, capability.minor],
        "name": platform.get_device_name(),
        "source": arch_source(),
        "initialised": torch.cuda.is_initialized(),
    }
"""
FOUND = {
    "class": "DcuRocmPlatform",
    "is RocmPlatform": True,
    "enum": "ROCM",
    "arch": "gfx936",
    "on_gfx936": True,
    "capability": [9, 3],
    "name": "Hygon DCU gfx936",
    "source": "kfd",
    "initialised": False,
}
CLASS = """
    from vllm.platforms import resolve_current_platform_cls_qualname
    result = resolve_current_platform_cls_qualname().rsplit(".", 1)[1]
"""


def test_a_cold_process_that_sees_only_a_kfd_node_and_a_hip_torch_gets_the_rocm_platform(ask: Ask, gpu_tree: Path) -> None:
    """The contract, without a fork: a new interpreter, no amdsmi, torch.version.hip set before vLLM is imported."""
    code = f"import torch; torch.version.hip = '6.3.26093'\nsource = {PLATFORM!r}\nimport textwrap, json\n"
    code += "exec(textwrap.dedent(source)); print(json.dumps(result))"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "CUDA_VISIBLE", "HIP_"))}
    env |= {"PYTHONPATH": str(gpu_tree), "VLLM_DCU_TEST_KFD_ROOT": str(ask.sysfs(DCU))}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == FOUND


@pytest.mark.parametrize("failure", ["ImportError", "KeyError", "OSError", "init"])
def test_a_broken_amdsmi_is_as_good_as_none_and_is_said_once(ask: Ask, failure: str) -> None:
    answer = ask.answer(PLATFORM, kfd=ask.sysfs(DCU), amdsmi_fails=failure, env={"FAKE_AMDSMI_ARCH": "gfx936"})
    assert answer.error is None, answer.traceback
    assert answer.value == FOUND
    assert answer.log.count("fake amdsmi was told to fail") == 1, answer.log


@pytest.mark.parametrize("said", ["", "N/A"])
def test_an_amdsmi_that_does_not_know_the_arch_is_completed_by_kfd(ask: Ask, said: str) -> None:
    assert ask(PLATFORM, kfd=ask.sysfs(DCU), amdsmi=said)["source"] == "kfd"


def test_where_amdsmi_works_its_answers_stand(ask: Ask) -> None:
    answer = ask(PLATFORM, kfd=ask.sysfs(DCU), amdsmi="gfx936:sramecc+:xnack-")
    assert answer == FOUND | {"arch": "gfx936:sramecc+:xnack-", "name": "device of the fake amdsmi", "source": "amdsmi"}


def test_amdsmi_alone_is_enough_where_sysfs_is_hidden(ask: Ask) -> None:
    assert ask(PLATFORM, amdsmi="gfx936")["class"] == "DcuRocmPlatform"


@pytest.mark.parametrize("gpu", [(AMD, 90306), (HYGON, 90208), (AMD, 90402), (HYGON, 90308)])
def test_without_amdsmi_no_other_device_is_found_as_upstream(ask: Ask, gpu: tuple[int, int]) -> None:
    assert ask(CLASS, kfd=ask.sysfs(gpu)) == "UnspecifiedPlatform"


@pytest.mark.parametrize("failure", ["KeyError", "init"])
def test_a_broken_amdsmi_on_another_device_ends_as_upstream(ask: Ask, failure: str) -> None:
    assert ask(CLASS, kfd=ask.sysfs((AMD, 90402)), amdsmi_fails=failure) == "UnspecifiedPlatform"
    assert ask.answer("import vllm.platforms.rocm", kfd=ask.sysfs((AMD, 90402)), amdsmi_fails="KeyError").error


def test_another_device_keeps_upstreams_class_and_a_plain_string(ask: Ask) -> None:
    code = CLASS + "    from vllm.platforms import rocm\n    result = [result, type(rocm._GCN_ARCH).__name__, rocm.on_gfx936()]"
    assert ask(code, kfd=ask.sysfs((AMD, 90402)), amdsmi="gfx942") == ["RocmPlatform", "str", False]


def test_without_a_hip_torch_there_is_no_rocm_platform(ask: Ask) -> None:
    assert ask(CLASS, kfd=ask.sysfs(DCU), hip=None) == "UnspecifiedPlatform"


def test_a_cpu_build_stays_one_on_a_machine_with_a_dcu(ask: Ask) -> None:
    assert ask(CLASS, kfd=ask.sysfs(DCU), path=(ask.cpu_tree(),)) == "CpuPlatform"


BOTH = CLASS + "    from vllm.platforms import rocm\n    result = [result, rocm._GCN_ARCH]"
GFX928 = (HYGON, 90208)


@pytest.mark.parametrize(("gpus", "env"), [((), {}), ((DCU, (AMD, 90402)), {"GPU_DEVICE_ORDINAL": "0"})])
def test_torch_is_the_last_resort_where_sysfs_says_nothing_or_too_much(
    ask: Ask, gpus: tuple[tuple[int, int], ...], env: dict[str, str]
) -> None:
    given = {"kfd": ask.sysfs(*gpus), "env": env}
    assert ask(BOTH, device="gfx936:sramecc+:xnack-", **given) == ["DcuRocmPlatform", "gfx936:sramecc+:xnack-"]
    assert ask(CLASS, device="gfx942", **given) == "UnspecifiedPlatform"


@pytest.mark.parametrize(
    ("env", "found"),
    [
        ({}, ["RocmPlatform", "gfx928"]),
        ({"HIP_VISIBLE_DEVICES": "1"}, ["DcuRocmPlatform", "gfx936"]),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, ["DcuRocmPlatform", "gfx936"]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-00000000000000a2"}, ["DcuRocmPlatform", "gfx936"]),
        ({"ROCR_VISIBLE_DEVICES": "1,0", "HIP_VISIBLE_DEVICES": "1"}, ["RocmPlatform", "gfx928"]),
    ],
)
def test_with_two_kinds_of_cards_the_visible_one_decides_whatever_amdsmi_lists_first(
    ask: Ask, env: dict[str, str], found: list[str]
) -> None:
    assert ask(BOTH, kfd=ask.sysfs(GFX928, DCU), amdsmi="gfx928,gfx936", env=env) == found


def test_with_two_kinds_of_cards_and_no_topology_torch_is_asked_and_not_the_first_of_a_list(ask: Ask) -> None:
    assert ask(BOTH, amdsmi="gfx936,gfx928", device="gfx928") == ["RocmPlatform", "gfx928"]
    assert ask(BOTH, amdsmi="gfx928,gfx936", device="gfx936") == ["DcuRocmPlatform", "gfx936"]


def test_a_worker_whose_device_is_of_another_kind_does_not_start(ask: Ask) -> None:
    """Ray may choose the device after vLLM was imported."""
    code = "import torch; from vllm.platforms import current_platform as p; p.check_if_supports_dtype(torch.bfloat16); result = 1"
    assert ask(code, kfd=ask.sysfs(DCU), device="gfx936:xnack-") == 1
    answer = ask.answer(code, kfd=ask.sysfs(DCU, GFX928), device="gfx928")
    assert "this worker's device is gfx928, and its process was started for gfx936" in (answer.error or "")


def test_the_list_of_build_targets_is_never_the_devices_arch(ask: Ask) -> None:
    targets = {"PYTORCH_ROCM_ARCH": "gfx936;gfx928", "HSA_OVERRIDE_GFX_VERSION": "9.3.6"}
    assert ask(CLASS, env=targets) == "UnspecifiedPlatform"
    code = "from vllm.platforms import rocm; result = [rocm._GCN_ARCH, rocm.on_gfx936()]"
    assert ask(code, env=targets, amdsmi="gfx928") == ["gfx928", False]
    assert ask(code, env={"PYTORCH_ROCM_ARCH": "gfx928"}, kfd=ask.sysfs(DCU)) == ["gfx936", True]


def test_conflicting_visible_devices_are_an_error_and_empty_means_unset(ask: Ask) -> None:
    code = "from vllm.platforms import current_platform; result = current_platform.device_count()"
    given = {"kfd": ask.sysfs(DCU, DCU, DCU)}
    clash = ask.answer(code, env={"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, **given)
    assert "ValueError: Inconsistent GPU visibility env vars" in (clash.error or "")
    assert ask(code, env={"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "1,2"}, **given) == 2
    assert ask(code, env={"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": ""}, **given) == 3


@pytest.mark.parametrize(("kind", "connected"), [(11, True), (2, False)])
def test_xgmi_links_come_from_kfd_without_amdsmi(ask: Ask, kind: int, connected: bool) -> None:
    code = """
        from vllm.platforms import current_platform as p
        result = [p.is_fully_connected([0, 1]), p.is_fully_connected([0]), p.is_fully_connected([0, 5])]
    """
    sysfs = ask.sysfs(DCU, DCU, links={(1, 2): kind, (2, 1): kind})
    assert ask(code, kfd=sysfs) == [connected, True, False]


def test_rocm_py_can_be_imported_before_the_platform_is_resolved(ask: Ask) -> None:
    code = "from vllm.platforms.rocm import on_gfx936; import torch; result = [on_gfx936(), torch.cuda.is_initialized()]"
    assert ask(code, kfd=ask.sysfs(DCU)) == [True, False]


def test_a_spawned_child_comes_to_the_same_platform(ask: Ask) -> None:
    """The engine core is such a child. It inherits the corrected environment and warns of nothing again."""
    code = """
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        from vllm.dcu.evidence.active import active_platform

        mine = active_platform()
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            childs = pool.submit(active_platform).result()
        result = [mine == childs, mine.ours, childs.sentence]
    """
    answer = ask.answer(code, amdsmi="gfx936", env={"VLLM_ROCM_USE_AITER": "1"})
    assert answer.error is None, answer.traceback
    assert answer.value == [True, True, "The platform is vllm.dcu.platform.DcuRocmPlatform: ours, on gfx936."]
    assert answer.log.count("asks for AITER") == 1


def test_an_out_of_tree_platform_plugin_is_respected_and_named(ask: Ask, runner: Zygote, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    (plugin / "vllm_other-1.0.dist-info").mkdir(parents=True)
    (plugin / "vllm_other-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-other\nVersion: 1.0\n")
    (plugin / "vllm_other-1.0.dist-info" / "top_level.txt").write_text("vllm_other\n")
    (plugin / "vllm_other-1.0.dist-info" / "entry_points.txt").write_text("[vllm.platform_plugins]\nother = vllm_other:register\n")
    (plugin / "vllm_other.py").write_text(
        "from vllm.platforms.interface import Platform, PlatformEnum\n"
        "def register():\n    return 'vllm_other.OtherPlatform'\n"
        "class OtherPlatform(Platform):\n    _enum = PlatformEnum.OOT\n    device_name = 'other'\n    device_type = 'cuda'\n"
    )
    code = """
        import os
        from vllm.dcu.evidence.active import active_platform, platform_plugins
        active = active_platform()
        result = [active.qualname, active.ours, active.sentence, list(platform_plugins()), os.environ["VLLM_ROCM_USE_AITER"]]
    """
    given = {"kfd": ask.sysfs(DCU), "path": (plugin,)}
    qualname, ours, sentence, plugins, aiter = ask(code, env={"VLLM_ROCM_USE_AITER": "1"}, **given)
    assert (qualname, ours, aiter) == ("vllm_other.OtherPlatform", False, "1"), "nothing of ours is imposed on it"
    assert "vllm_other.OtherPlatform of vllm-other" in sentence
    assert plugins == ["other = vllm_other:register (vllm-other)"]
    left_out = ask(code, env={"VLLM_ROCM_USE_AITER": "1", "VLLM_PLUGINS": ""}, **given)
    assert left_out[:2] == ["vllm.dcu.platform.DcuRocmPlatform", True]
