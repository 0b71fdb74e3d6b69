"""The small parts of `verify`: V0's verdicts, what a binding is read from, pictures, the tools' exit codes."""

from __future__ import annotations

import hashlib
import itertools
import os
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from vllm.dcu.evidence import binding
from vllm.dcu.evidence.binding import differences, observe_binding
from vllm.dcu.evidence.ladder import Climb, Measure, Outcome, Result, Step, Trial, passed
from vllm.dcu.manifest import Verdict
from vllm.dcu.records.record import Toolchain
from vllm.dcu.verify import chart
from vllm.dcu.verify.rungs import build
from vllm.dcu.verify.rungs.stage import Stage, subject_of

from scripts.checks import verify
from scripts.common import errors
from tests.unit.dcu.evidence.evidence_samples import BINDING, BUILT_IN, SIMULATED, records_by_id

TOOLS = Toolchain("2.10.0", "6.2.0", "0.18.1")


def v0(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    problems: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
    ours: bool = True,
    simulated: bool = False,
) -> Result:
    """V0 on a build about which `examine` says this, under a platform that is ours or not."""

    def platform(figures: dict[str, object]) -> bool:
        figures["platform"] = "The platform is vllm_hcu.HcuPlatform of vllm-hcu: an out-of-tree plugin"
        return ours

    monkeypatch.setattr(build, "examine", lambda package: Verdict(package, None, problems, notes))
    monkeypatch.setattr(build, "_platform", platform)
    bound = SIMULATED if simulated else BINDING
    stage = Stage(bound, subject_of(records_by_id()[BUILT_IN]), "cuda", None, None, 64)
    return build.build_that_runs(stage, Trial(bound, tmp_path / "raw", lambda line: None))


def test_v0_passes_on_the_whole_build_under_its_own_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert v0(tmp_path, monkeypatch).outcome is Outcome.PASSED


def test_v0_names_an_edited_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = v0(tmp_path, monkeypatch, problems=("gate.py is not the file that was built", "more"))
    assert result.outcome is Outcome.FAILED
    assert result.why == "gate.py is not the file that was built (and 1 more)"


def test_c44_v0_refuses_a_second_copy_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert v0(tmp_path, monkeypatch, notes=("another vllm is on the search path: /x/vllm",)).outcome is Outcome.FAILED


def test_c34_v0_names_another_platform_class_and_refuses_to_call_it_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = v0(tmp_path, monkeypatch, ours=False)
    assert result.outcome is Outcome.FAILED
    assert "vllm_hcu.HcuPlatform" in result.why
    assert v0(tmp_path, monkeypatch, ours=False, simulated=True).outcome is Outcome.PASSED


def test_a_binding_is_read_from_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "lib" / "libamdhip64.so.6"
    library.parent.mkdir()
    library.write_bytes(b"hip")
    (tmp_path / ".info").mkdir()
    (tmp_path / ".info" / "version").write_text("26.04\n")
    (tmp_path / "_rocm_C.so").write_bytes(b"extension")
    monkeypatch.setattr(binding, "_hip_library", lambda: library)
    found = observe_binding("gfx936", TOOLS, extension=tmp_path / "_rocm_C.so")
    assert found.hip_runtime == f"libamdhip64.so.6 {hashlib.sha256(b'hip').hexdigest()}"
    assert found.extension == hashlib.sha256(b"extension").hexdigest()
    assert found.dtk == "26.04"
    library.write_bytes(b"another hip under the same name")
    assert observe_binding("gfx936", TOOLS, extension=tmp_path / "_rocm_C.so").hip_runtime != found.hip_runtime


@pytest.mark.parametrize(
    ("mapped", "found"),
    [
        (["/usr/lib/libc.so.6", "/opt/dtk/hip/lib/libgalaxyhip.so.5.2"], "/opt/dtk/hip/lib/libgalaxyhip.so.5.2"),
        (["/opt/rocm/lib/libamdhip64.so.6.2"], "/opt/rocm/lib/libamdhip64.so.6.2"),
        (["/opt/dtk/lib/libamdhip64.so.5", "/opt/dtk/hip/lib/libgalaxyhip.so.5"], "/opt/dtk/hip/lib/libgalaxyhip.so.5"),
        (["/usr/lib/libc.so.6", "/opt/dtk/lib/libhipblas.so.0"], None),
    ],
)
def test_the_hip_library_is_the_one_that_is_mapped(monkeypatch: pytest.MonkeyPatch, mapped: list[str], found: str | None) -> None:
    """DTK's own runtime has a name of its own."""
    maps = "7f00-7f01 rw-p 00000000 00:00 0 \n" + "".join(f"7f02-7f03 r-xp 00000000 08:01 2    {path}\n" for path in mapped)
    monkeypatch.setattr(Path, "read_text", lambda self, **_: maps)
    assert binding._hip_library() == (None if found is None else Path(found))


def test_the_blas_that_answers_is_in_the_binding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of: another library, a preference, tuning on, another file of tuned results, changes the binding."""
    libraries = {name: tmp_path / f"{name}.so.4" for name in ("librocblas", "libhipblaslt")}
    for path in libraries.values():
        path.write_bytes(b"one")
    maps = "".join(f"7f02-7f03 r-xp 00000000 08:01 2    {path}\n" for path in libraries.values())
    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda self, **k: maps if str(self) == "/proc/self/maps" else read(self, **k))
    for name in binding._BLAS_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    seen = [observe_binding("gfx936", TOOLS)]
    assert hashlib.sha256(b"one").hexdigest() in seen[0].blas
    for path in libraries.values():
        path.write_bytes(b"another")
        seen.append(observe_binding("gfx936", TOOLS))
    tuned = tmp_path / "tuned.csv"
    tuned.write_text("1")
    for name, value in {
        "TORCH_BLAS_PREFER_HIPBLASLT": "1", "PYTORCH_TUNABLEOP_ENABLED": "1", "PYTORCH_TUNABLEOP_FILENAME": str(tuned)
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
        seen.append(observe_binding("gfx936", TOOLS))
    tuned.write_text("2")
    seen.append(observe_binding("gfx936", TOOLS))
    assert all(differences(a, b) == ("blas",) for a, b in itertools.pairwise(seen))
    maps = ""
    bare = observe_binding("gfx936", TOOLS)
    assert "no librocblas.so, no libhipblaslt.so" in bare.blas
    assert "blas" not in bare.unknown


def pci(root: Path, slot: str, vendor: str, kind: str, driver: str, **files: str) -> None:
    """One PCI function with its bound driver, as sysfs shows them."""
    function = root / "bus" / "pci" / "devices" / slot
    function.mkdir(parents=True)
    for name, text in {"vendor": vendor, "class": kind, "device": "0x6210"}.items():
        (function / name).write_text(text + "\n")
    module = root / "module" / driver
    module.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (module / name).write_text(text + "\n")
    bound = root / "bus" / "pci" / "drivers" / driver
    bound.mkdir(parents=True, exist_ok=True)
    (function / "driver").symlink_to(bound)


def test_the_driver_is_the_one_that_is_bound_to_the_dcu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a module that happens to be loaded, nor the driver of the vendor's other functions (USB, bridges)."""
    monkeypatch.setattr(binding, "_SYS", tmp_path)
    pci(tmp_path, "0000:01:00.0", "0x1d94", "0x0c0330", "xhci_hcd", version="1")
    pci(tmp_path, "0000:02:00.0", "0x1002", "0x030000", "amdgpu", version="6.8")
    assert binding._driver() == ""
    pci(tmp_path, "0000:03:00.0", "0x1d94", "0x0b4000", "hydcu", version="6.2.26")
    pci(tmp_path, "0000:04:00.0", "0x1d94", "0x0b4000", "hydcu")
    assert binding._driver() == "hydcu 6.2.26"
    monkeypatch.setenv("VLLM_DCU_TEST_KFD_ROOT", str(tmp_path / "none"))
    assert binding._device() == "1d94:6210"


def test_a_driver_without_a_version_is_bound_by_its_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "_SYS", tmp_path)
    pci(tmp_path, "0000:03:00.0", "0x1d94", "0x0b4000", "hydcu")
    assert binding._driver() == f"hydcu of kernel {os.uname().release}"


def test_without_a_dcu_the_fields_that_bind_are_unknown() -> None:
    assert {"hip_runtime", "extension"} <= set(observe_binding("gfx936", TOOLS).unknown)


ROWS = [
    chart.Bar(f"{m} x 5120 & co", name, m / 10, (m / 11, m / 9)) for m in (96, 14336, 16384, 34816) for name in ("the < kernel", "F.linear")
]
MARKS = [("measured copy", 1043.0), ("measured read", 1050.0)]


def texts(figure: Any) -> dict[str, Any]:
    """The figure's texts and where each stands, as drawn."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    (axes,) = figure.axes
    ticks = [tick for tick in axes.get_xticklabels() if axes.get_xlim()[0] <= tick.get_position()[0] <= axes.get_xlim()[1]]
    found = [*ticks, *axes.get_yticklabels(), *axes.texts, axes.xaxis.label, *figure.texts, *figure.legends[0].get_texts()]
    return {f"{i}: {text.get_text()}": text.get_window_extent(renderer) for i, text in enumerate(found)}


def test_no_label_of_a_chart_lies_over_another_or_outside_and_a_crowded_one_is_seen() -> None:
    def faults(height: float) -> list[str]:
        figure = chart.bars("a title that is far too long for one line " * 4, "GB/s", ROWS, MARKS)
        figure.set_figheight(figure.get_figheight() * height)
        found = texts(figure)
        pairs = [f"{a} over {b}" for a, b in itertools.combinations(found, 2) if found[a].overlaps(found[b])]
        return pairs + [
            name for name, box in found.items() if box.x0 < 0 or box.y0 < 0 or box.x1 > figure.bbox.x1 or box.y1 > figure.bbox.y1
        ]

    assert len(texts(chart.bars("t", "GB/s", ROWS, MARKS))) >= 4 + 8 + 4, "rows, values and the legend"
    assert faults(1.0) == []
    assert faults(0.45) != []


def test_a_chart_is_the_same_bytes_again_and_escapes_its_words() -> None:
    first, again = (chart.as_svg(chart.bars("a < b", "GB/s", ROWS, MARKS)) for _ in range(2))
    assert first == again
    words = {"".join(element.itertext()) for element in ET.fromstring(first).iter("{http://www.w3.org/2000/svg}text")}  # just written
    assert {"a < b", "the < kernel", "34816 x 5120 & co", "1434", "measured copy: 1043"} <= words


def test_the_bar_is_as_long_as_its_value() -> None:
    (axes,) = chart.bars("t", "us", ROWS).axes
    assert [bar.get_width() for bars in axes.containers for bar in bars] == pytest.approx([m / 10 for m in (96, 14336, 16384, 34816)] * 2)


def test_a_report_shows_a_picture_for_each_rung_that_measured_times_and_none_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Measure(2.0, 1.0, 3.0, 3, "us", "lower")
    steps = [Step(i, "t", "", "b", r, 1.0, "d", ()) for i, r in (("V2", passed({"cases": 1})), ("V2S", passed({"kernel time": time})))]
    climb = Climb("verify", "s", BINDING, "d", tuple(steps))
    assert (chart.missing(), chart.write_plots(climb, tmp_path)) == ("", ("v2s-times.png",))
    assert {file.name for file in tmp_path.iterdir()} == {"v2s-times.svg", "v2s-times.png"}
    monkeypatch.setattr(chart.importlib.util, "find_spec", lambda name: None)
    assert "matplotlib is not installed" in chart.missing()
    assert chart.write_plots(climb, tmp_path / "none") == ()
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(("code", "error"), [(3, errors.CheckFailed), (4, errors.NotRun), (5, errors.CheckFailed), (1, errors.UserError)])
def test_the_ladders_exit_codes_become_the_tools_own(code: int, error: type[errors.Fatal]) -> None:
    assert verify.outcome(0) == 0
    with pytest.raises(error):
        verify.outcome(code)
