"""audit: device-code audit of the gfx936 build inputs (and of a built wheel or library: WHEEL=path).

Three layers: where the build sends each unit (the one place where gfx936 itself can be named without a DTK), what the
compiler makes of it for public relatives, and that nothing else changed. Each negative control must fail as predicted.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.audit import layers
from scripts.audit.configure import AUDIT, Bench, Command, Configured, commands, compile_targets, configure, run_unit
from scripts.audit.cost import measure_costs
from scripts.audit.objects import (
    LlvmTools,
    device_code,
    dtk_tools,
    gemv_faults,
    holds,
    library_of,
    llmm1_faults,
    private_tools,
    split_faults,
)
from scripts.audit.toolchain import ensure
from scripts.common import errors
from scripts.common.files import atomic_write, hold, new_folder, say
from scripts.common.git import open_repo
from scripts.common.paths import TREE, shown
from scripts.runtime.environment import ensure_serving
from scripts.series.apply import LOCK, apply_tree
from scripts.upstream.releases import read_pin

__all__ = ["Report", "audit_tree", "audit_wheel", "bench_of", "main", "upstream_tree"]

_OBJECT = "CMakeFiles/{}.dir/{}.o"
_SKINNY = "csrc/rocm/skinny_gemms.hip"
_MODULE = "_rocm_C.abi3.so"
_OWN_MODULE = "_dcu_C.abi3.so"
_WAVE32 = "WARP_SIZE in device code is not the 64 lanes"
_NOT_A_DCU = "dcu_llmm1.cu is being compiled for a device that is not a DCU"
_NO_DOT2C = "instruction not supported on this GPU"


@dataclass
class Report:
    """What was checked, with the faults found and figures; printed as it grows."""

    border: dict[str, str]
    rows: list[dict[str, object]] = field(default_factory=list)

    def check(self, layer: str, statement: str, faults: Sequence[str], **figures: object) -> None:
        """Record one statement; it holds where there are no faults."""
        self.rows.append({"layer": layer, "statement": statement, "faults": list(faults), **figures})
        print(f"{'ok  ' if not faults else 'FAIL'} {layer:8} {statement}", flush=True)
        for fault in faults[:20]:
            print(f"       - {fault}", flush=True)

    @property
    def faults(self) -> int:
        """Statements that do not hold."""
        return sum(bool(row["faults"]) for row in self.rows)

    def write(self) -> Path:
        """Write build/audit/report.json."""
        file = AUDIT / "report.json"
        atomic_write(file, (json.dumps({"border": self.border, "rows": self.rows}, indent=1, sort_keys=True, default=str) + "\n").encode())
        return file


def bench_of() -> Bench:
    """Toolchain and torch for the audit.

    Raises:
        errors.NotRun: one of them cannot be had here.
    """
    try:
        toolchain, python = ensure(), ensure_serving()
    except errors.Fatal as error:
        raise errors.NotRun(f"not run: {error.what}", error.why, error.do) from error
    asked = "import json,torch,pathlib;print(json.dumps([torch.__version__,str(pathlib.Path(torch.__file__).parent/'include')]))"
    done = subprocess.run([str(python), "-c", asked], capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise errors.NotRun("not run: no torch headers", f"{shown(python)} has no torch", "set RUNTIME_PYTHON to one that has torch 2.10.0")
    version, include = json.loads(done.stdout)
    return Bench(toolchain, python, version.partition("+")[0], Path(include))


def upstream_tree() -> Path:
    """The base commit of build/vllm, unpacked: what upstream itself would compile. build/vllm is applied first."""
    with hold(LOCK, "apply"):
        state, _ = apply_tree(read_pin())
    final = AUDIT / f"upstream.{state.base[:12]}"
    with hold(AUDIT / ".upstream.lock", "unpacking upstream"):
        if not final.is_dir():
            archive = open_repo(TREE).raw("archive", "--format=tar", state.base).stdout
            with new_folder(final) as work, tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(work, filter="data")
    return final


def _one(found: Sequence[Command], unit: str) -> Command:
    matches = [command for command in found if command.unit == unit]
    if len(matches) != 1:
        raise errors.CheckFailed(
            f"{unit} is compiled {len(matches)} times", "the audit looks at its one command", "see the routing layer's faults above"
        )
    return matches[0]


def _layer_a(report: Report, bench: Bench) -> Configured:
    made: dict[str, Configured] = {}
    for archs in layers.EXPECTED_ROUTING:
        made[archs] = configure(bench, TREE, archs)
        found = commands(made[archs])
        table = {unit: sorted(offload) for unit, offload in sorted(layers.routing(found).items())}
        report.check("routing", f"PYTORCH_ROCM_ARCH={archs}", layers.routing_faults(archs, found), units=table)
    return made["gfx90a"]


def _layer_b(report: Report, bench: Bench, tools: LlvmTools) -> None:
    for archs, dcu, others in (("gfx906", "gfx906", frozenset[str]()), ("gfx900;gfx906", "gfx900", frozenset({"gfx906"}))):
        built = configure(bench, TREE, archs, stand_in=dcu)
        expected = {layers.DCU_UNIT: frozenset({dcu})} | (
            dict.fromkeys((_SKINNY, "csrc/rocm/attention.hip"), others) | {"csrc/rocm/torch_bindings.cpp": frozenset[str]()}
            if others
            else {"csrc/rocm/dcu_bindings.cpp": frozenset[str]()}
        )
        report.check("routing", f"{archs}, {dcu} for the DCU", layers.routing_faults(archs, commands(built), expected))
        (module,) = compile_targets(built, [_MODULE])
        codes = device_code(module, tools)
        mine = [code for code in codes if code.arch == dcu]
        (own,) = compile_targets(built, [_OWN_MODULE])
        own_codes = device_code(own, tools)
        report.check(
            "objects",
            f"_dcu_C for {archs} holds the kernels of csrc/dcu/gemv_variants.h alone, for {dcu} alone, without scratch",
            gemv_faults(own_codes, dcu) + ([] if b"gemv(Tensor weight" in own.read_bytes() else ["the op gemv is not bound"]),
            kernels=len(own_codes[0].kernels) if own_codes else 0,
        )
        report.check(
            "objects",
            f"the linked module for {archs} holds LLMM1 alone for {dcu}",
            split_faults(codes, dcu, others) + _binding_faults(module, bool(others)),
            kernels={
                kernel.name: [kernel.wavefront, kernel.lds, kernel.scratch, kernel.vgpr_spills + kernel.sgpr_spills]
                for code in mine
                for kernel in code.kernels
            },
        )
        if not others:
            _controls(report, built, module, tools)
        else:
            dead = [f"{code.arch}: {len(code.kernels)} kernels" for code in codes if code.arch != dcu and not llmm1_faults(code)]
            report.check("control", "the same rules refuse the other archs' code objects of that module", dead)


def _binding_faults(module: Path, beside_upstream: bool) -> list[str]:
    """Which ops the module registers, by their schemas in it."""
    data = module.read_bytes()
    faults = [] if b"LLMM1(Tensor in_a" in data else ["the op LLMM1 is not bound"]
    for op in ("wvSplitK(", "wvSplitKrc(", "wvSplitKQ(", "paged_attention("):
        if (op.encode() + b"Tensor" in data) != beside_upstream:
            faults.append(f"the op {op[:-1]} is {'not ' if beside_upstream else ''}bound")
    return faults


def _controls(report: Report, built: Configured, module: Path, tools: LlvmTools) -> None:
    unit = _one(commands(built), layers.DCU_UNIT)
    for name, options, expected in (
        ("a 32-wide WARP_SIZE build is refused by the compiler", _believing_in_32(built), _WAVE32),
        ("the unit is refused for a device that is not a DCU", ["-UVLLM_DCU_STAND_IN"], _NOT_A_DCU),
    ):
        with tempfile.TemporaryDirectory() as folder:
            done = run_unit(unit, built, ["--cuda-device-only", "-fsyntax-only", *options], Path(folder) / "x.o")
        report.check("control", name, layers.diagnosis_faults(done.returncode, done.stderr, expected, "LLMM1"))
    with tempfile.TemporaryDirectory() as folder:
        planted = plant_kernel(built, module, "__global__ void wvSplitK_planted(float* p) { *p = 1.0f; }", Path(folder))
        found = split_faults(device_code(planted, tools), "gfx906", frozenset())
    report.check("control", "a planted extra kernel is found", [] if any("planted" in f for f in found) else ["it was not found"])


def _believing_in_32(built: Configured) -> list[str]:
    """Options under which upstream's own header says 32 lanes to the unit, as where __GFX9__ is not defined."""
    header = built.folder / "csrc" / "hip_compat.h"
    text = header.read_text(encoding="utf-8")
    if "return 64;" not in text:
        raise errors.CheckFailed(
            f"{header.name} has no `return 64;`", "the control plants 32 lanes there", "adapt _believing_in_32 in scripts/audit/verb.py"
        )
    planted = built.folder / "planted-32.h"
    planted.write_text(text.replace("return 64;", "return 32;"), encoding="utf-8")
    overlay = built.folder / "planted-32.yaml"
    roots = [{"name": str(header), "type": "file", "external-contents": str(planted)}]
    overlay.write_text(json.dumps({"version": 0, "roots": roots}), encoding="utf-8")
    return ["-ivfsoverlay", str(overlay)]


def plant_kernel(built: Configured, module: Path, source: str, folder: Path, options: Sequence[str] = ("--offload-arch=gfx906",)) -> Path:
    """`module` with the bundle of one more unit behind its own, as a linker would concatenate them.

    Raises:
        errors.CheckFailed: `source` does not compile.
    """
    toolchain = built.bench.toolchain
    (folder / "planted.hip").write_text("#include <hip/hip_runtime.h>\n" + source + "\n", encoding="utf-8")
    argv = [
        toolchain.tool("clang++"), "-x", "hip", *options, "-O3", f"--rocm-path={toolchain.rocm}",
        f"--rocm-device-lib-path={toolchain.device_libs}", "--cuda-device-only", "--gpu-bundle-output",
        "-c", folder / "planted.hip", "-o", folder / "planted.bundle",
    ]  # fmt: skip
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise errors.CheckFailed("the planted kernel does not compile", done.stderr.strip()[-300:], "correct the plant")
    planted = folder / "planted.so"
    planted.write_bytes(module.read_bytes() + (folder / "planted.bundle").read_bytes())
    return planted


def _layer_c(report: Report, bench: Bench, tools: LlvmTools, patched: Configured) -> None:
    source = upstream_tree()
    upstream = configure(bench, source, "gfx90a")
    ours, theirs = commands(patched), commands(upstream)
    report.check("radius", "csrc/ is upstream's but for new dcu_ files", layers.identical_files_faults(source, TREE))
    report.check(
        "radius",
        "every compile command for gfx90a is upstream's",
        layers.commands_faults(upstream, patched, ours, theirs),
        commands=len(theirs),
    )
    units = [(c.target, c.unit) for c in theirs if c.unit in (_SKINNY, "csrc/rocm/torch_bindings.cpp")]
    targets = [_OBJECT.format(target, unit) for target, unit in units]
    pairs = list(zip(compile_targets(upstream, targets), compile_targets(patched, targets), strict=True))
    for (_, unit), (left, right) in zip(units, pairs, strict=True):
        report.check("radius", f"{unit} for gfx90a: the object is upstream's to the byte", layers.blast_radius_faults(left, right, unit))
    skinny = next(right for (_, unit), (_, right) in zip(units, pairs, strict=True) if unit == _SKINNY)
    (code,) = device_code(skinny, tools)
    dots = sum(n for name, n in code.instructions.items() if name.startswith("v_dot2c"))
    alive = [] if dots and llmm1_faults(code) else ["no v_dot2c was found where there must be thousands: the disassembly check is blind"]
    report.check("control", "the gfx90a object shows v_dot2c, and the rules refuse it", alive, v_dot2c=dots, kernels=len(code.kernels))
    forced = _forced_dot2c(bench)
    report.check("control", "__HIP__GFX9__ forced on gfx906: v_dot2c is refused, and nothing else is", forced)


def _forced_dot2c(bench: Bench) -> list[str]:
    """Upstream's whole unit for gfx906 with its arch gate forced open."""
    built = configure(bench, TREE, "gfx900;gfx906", stand_in="gfx900")
    compile_targets(built, [_MODULE])  # hipifies, and is there already after layer b
    command = _one(commands(built), _SKINNY)
    with tempfile.TemporaryDirectory() as folder:
        options = ["--cuda-device-only", "-D__HIP__GFX9__", "-ferror-limit=1", "-O1"]
        done = run_unit(command, built, options, Path(folder) / "x.o")
    faults = layers.diagnosis_faults(done.returncode, done.stderr, _NO_DOT2C, "the forced build")
    return faults + ([] if "v_dot2c_f32_f16" in done.stderr else ["the diagnosis does not show v_dot2c_f32_f16"])


def audit_tree() -> Report:
    """All three layers on build/vllm, with their negative controls.

    Raises:
        errors.NotRun: the toolchain or torch cannot be had here.
        errors.Fatal: a step before the checks failed.
    """
    bench = bench_of()
    upstream_tree()
    tools = private_tools(bench.toolchain)
    report = Report(
        {
            "device": "none: compiled, disassembled and inspected, not run",
            "gfx936": "named in the routing layer only; gfx906 and gfx900 stand in for it in the others",
            "compiler": bench.toolchain.compiler,
            "packages": json.dumps(dict(bench.toolchain.versions), sort_keys=True),
            "torch": f"headers of {bench.torch_version}; its HIP headers are declarations of scripts/audit/torch",
        }
    )
    say(f"audit: {bench.toolchain.compiler}; HIP headers {bench.toolchain.versions['libamdhip64-dev']}; torch {bench.torch_version}")
    steps: list[Callable[[], None]] = []
    patched = _layer_a(report, bench)
    steps += [lambda: _layer_b(report, bench, tools), lambda: _layer_c(report, bench, tools, patched)]
    for step in steps:
        step()
    return report


def audit_wheel(path: Path, dcu: str = "gfx936") -> Report:
    """What a built wheel or library holds for `dcu`: LLMM1 and nothing else.

    Raises:
        errors.Fatal: it cannot be read, or no tools can disassemble it.
    """
    tools = dtk_tools() or private_tools(ensure())
    report = Report({"file": path.name, "tools": tools.origin, "device": "none: disassembled and inspected, not run"})
    with library_of(path) as library:
        codes = device_code(library, tools)
    others = frozenset(code.arch for code in codes) - {dcu}
    report.check("objects", f"{path.name} holds LLMM1 alone for {dcu}", split_faults(codes, dcu, others), others=sorted(others))
    if path.suffix == ".whl" and holds(path, "_dcu_C"):
        with library_of(path, "_dcu_C") as library:
            own = device_code(library, tools)
        report.check("objects", f"{path.name}: _dcu_C holds the kernels of csrc/dcu/gemv_variants.h alone", gemv_faults(own, dcu))
    return report


def main(argv: Sequence[str]) -> int:
    """Command line of `audit`."""
    parser = argparse.ArgumentParser(prog="audit", description=__doc__)
    parser.add_argument("--wheel", type=Path, help="audit this wheel or library instead of the build inputs")
    parser.add_argument("--arch", default="gfx936", help="with --wheel: the arch that must hold LLMM1 alone (a stand-in, for tests)")
    parser.add_argument("--cost", action="store_true", help="measure instead what a gfx936 _rocm_C costs to compile (10 CPU minutes)")
    args = parser.parse_args(argv)
    if args.cost:
        costs = measure_costs(bench_of(), upstream_tree())
        for cost in costs:
            print(f"{cost.total:7.1f} CPU s  {costs[0].total / cost.total:5.2f}  {cost.what}")
        return 0
    report = audit_wheel(args.wheel, args.arch) if args.wheel else audit_tree()
    file = report.write()
    print(f"{len(report.rows)} statements, {report.faults} do not hold; {shown(file)}")
    if report.faults:
        raise errors.CheckFailed(
            f"the audit found {report.faults} fault(s)",
            "each is listed above",
            "no build of this tree is for use on a DCU until they are gone",
        )
    return 0
