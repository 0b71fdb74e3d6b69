"""Whatever is installed with the wheel, the vendor's torch, triton and amdsmi stay what they were.

Real pip, a real environment, the real requirements of the device wheel; the packages themselves are empty.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.cli import run
from scripts.common.git import open_repo
from scripts.common.paths import ROOT, TREE
from scripts.machine import interpreter
from scripts.wheel import metadata
from scripts.wheel.install import constraints, install_lines, write_constraints
from scripts.wheel.pack import DEFAULT_EPOCH, Entry, WheelName, wheel_text, write_wheel
from scripts.wheel.sources import Sources, read_sources
from tests.machine import distribution

VENDOR = {"torch": "2.10.0+das.dtk2604", "triton": "3.1.0+das.dtk2604", "amdsmi": "25.4"}
# What an index would offer instead, newer in every case.
NEWER = {"torch": "2.11.0", "triton": "3.9.0", "amdsmi": "26.2", "torchvision": "0.30.0"}
# What known requirements of the wheel ask for themselves, and two that want what the vendor does not have.
NEEDS = {
    "xgrammar": ["torch>=1.10.0", "triton"],
    "compressed-tensors": ["torch>=1.7.0"],
    "torchvision": ["torch==2.11.0"],
    "wants-newer-torch": ["torch>=2.11"],
    "wants-torchvision": ["torchvision"],
}


def tiny(folder: Path, name: str, version: str, needs: Sequence[str] = ()) -> Path:
    """An empty wheel."""
    part = canonicalize_name(name).replace("-", "_")
    wheel = WheelName(part, version, "py3-none-any")
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + "".join(f"Requires-Dist: {need}\n" for need in needs)
    return pack(folder, wheel, text.encode())


def pack(folder: Path, wheel: WheelName, text: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    entries = [
        Entry(f"{wheel.dist_info}/METADATA", text),
        Entry(f"{wheel.dist_info}/WHEEL", wheel_text(wheel.tag, pure=True, generator="t")),
    ]
    write_wheel(folder / wheel.filename, wheel.dist_info, [*entries, Entry(f"{wheel.name}_is_here.py", b"")], DEFAULT_EPOCH)
    return folder / wheel.filename


def fitting(requirement: Requirement) -> str:
    """A version within the requirement's limits, taken from the limits themselves."""
    named = [str(part.version).removesuffix(".*") for part in requirement.specifier if part.operator in ("==", ">=", "~=")]
    return named[0] if named else "1.0"


@pytest.fixture(scope="module")
def sources() -> Sources:
    assert run(["apply"]) == 0
    return read_sources(open_repo(TREE))


@pytest.fixture(scope="module")
def index(sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that stands for the index: every requirement of the wheel, and newer builds of what is the vendor's."""
    folder = tmp_path_factory.mktemp("index")
    for line in [*metadata.requirements(sources.files, "rocm"), "wants-newer-torch", "wants-torchvision"]:
        requirement = Requirement(line)
        tiny(folder, requirement.name, fitting(requirement), NEEDS.get(requirement.name, ()))
        for extra in requirement.extras:
            assert extra in ("standard", "image")
    for name, version in NEWER.items():
        tiny(folder, name, version, NEEDS.get(name, ()))
    return folder


@pytest.fixture(scope="module")
def product(sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The device wheel as to its metadata: name, version, requirements."""
    version = "0.18.1+gfx936.1"
    return pack(
        tmp_path_factory.mktemp("dist"), WheelName("vllm", version, "py3-none-any"), metadata.metadata(sources.files, version, "rocm")
    )


class Box:
    """An environment with the vendor's packages, driven by pip."""

    def __init__(self, folder: Path, index: Path, vendor: Mapping[str, str]) -> None:
        self.index = index
        self.python = folder / "env" / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
        wheels = [str(tiny(folder / "vendor", name, version)) for name, version in vendor.items()]
        assert self.pip("install", "--no-deps", *wheels) == 0
        self.constraints = folder / "constraints.txt"
        self.constraints.write_text(constraints(interpreter.Facts(str(self.python), distributions=self.installed())))

    def pip(self, verb: str, *words: str) -> int:
        argv = [sys.executable, "-m", "pip", "--python", str(self.python), "--isolated", "--disable-pip-version-check", verb, "--no-index"]
        self.said = subprocess.run([*argv, "--find-links", str(self.index), *words], capture_output=True, text=True, check=False)
        return self.said.returncode

    def installed(self) -> dict[str, str]:
        code = "import importlib.metadata as m, json; print(json.dumps({d.metadata['Name']: d.version for d in m.distributions()}))"
        found: dict[str, str] = json.loads(subprocess.run([self.python, "-c", code], capture_output=True, check=True).stdout)
        return found

    def vendor(self) -> dict[str, str]:
        return {name: version for name, version in self.installed().items() if name in NEWER}


@pytest.fixture
def box(tmp_path: Path, index: Path) -> Box:
    return Box(tmp_path, index, VENDOR)


def test_c41_the_documented_lines_leave_the_vendors_packages_alone(box: Box, product: Path) -> None:
    assert box.pip("install", "--no-deps", str(product)) == 0, box.said.stderr
    assert box.pip("install", "-c", str(box.constraints), str(product)) == 0, box.said.stderr
    assert box.vendor() == VENDOR
    assert {"vllm", "xgrammar", "compressed-tensors"} <= set(box.installed())


def test_c41_a_plain_install_leaves_them_alone_too(box: Box, product: Path) -> None:
    assert box.pip("install", str(product)) == 0, box.said.stderr
    assert box.vendor() == VENDOR


@pytest.mark.parametrize("package", ["wants-newer-torch", "wants-torchvision"])
def test_c41_under_the_constraints_a_package_that_would_replace_torch_is_refused(box: Box, package: str) -> None:
    assert box.pip("install", "-c", str(box.constraints), package) != 0
    assert "constraint" in box.said.stderr + box.said.stdout
    assert box.vendor() == VENDOR


def test_the_same_package_replaces_torch_where_there_are_no_constraints(box: Box) -> None:
    """The planted fault: without the file this is what happens to a vendor's torch."""
    assert box.pip("install", "wants-newer-torch") == 0, box.said.stderr
    assert box.vendor()["torch"] == "2.11.0"


def test_a_triton_that_no_distribution_brought_is_not_shadowed(tmp_path: Path, index: Path, product: Path) -> None:
    box = Box(tmp_path, index, {"torch": VENDOR["torch"]})
    assert "triton<0" in box.constraints.read_text()
    assert box.pip("install", "-c", str(box.constraints), "xgrammar") != 0
    assert box.vendor() == {"torch": VENDOR["torch"]}


def test_a_triton_of_another_distribution_is_left_out_of_the_resolution(tmp_path: Path, index: Path, product: Path) -> None:
    """flagtree brings the module triton: the printed lines bring all that is missing, and neither replace it nor end in a conflict."""
    box = Box(tmp_path, index, {"torch": VENDOR["torch"], "flagtree": "0.3.0"})
    (site,) = (tmp_path / "env" / "lib").glob("python3*/site-packages")
    distribution(site, "flagtree", "0.3.0", {"triton/__init__.py": "mine = 1\n"}, folder="flagtree-0.3.0.dist-info-new")
    (site / "flagtree-0.3.0.dist-info-new" / "RECORD").replace(site / "flagtree-0.3.0.dist-info" / "RECORD")
    (site / "flagtree-0.3.0.dist-info-new" / "METADATA").unlink()
    (site / "flagtree-0.3.0.dist-info-new").rmdir()
    found = interpreter.facts(str(box.python), {"PATH": "/usr/bin:/bin"})
    assert found.owners == {"triton": "flagtree"}
    held = write_constraints(tmp_path, found)
    assert box.pip("install", "-c", str(held), "xgrammar") != 0, "pip alone can only refuse: it never lays another triton over it"
    lines = install_lines(product, held, found)
    for line in lines[1:3]:
        words = [*shlex.split(line, comments=True), "--no-index", "--find-links", str(index)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert {"vllm", "xgrammar", "flagtree"} <= set(box.installed())
    assert box.vendor() == {"torch": VENDOR["torch"]}
    assert (site / "triton" / "__init__.py").read_text() == "mine = 1\n"


def test_numpy_stays_what_the_vendors_torch_was_compiled_against(tmp_path: Path, index: Path, product: Path) -> None:
    tiny(index, "numpy", "2.3.5")
    box = Box(tmp_path, index, {**VENDOR, "numpy": "1.26.4"})
    assert box.pip("install", "--dry-run", "-c", str(box.constraints), str(product)) == 0, box.said.stderr
    assert "Would install" in box.said.stdout
    assert "numpy" not in box.said.stdout.partition("Would install")[2]
    assert box.pip("install", "-c", str(box.constraints), str(product)) == 0, box.said.stderr
    assert box.installed()["numpy"] == "1.26.4"


def test_what_a_broken_uninstall_left_is_not_believed(tmp_path: Path, index: Path) -> None:
    box = Box(tmp_path, index, VENDOR)
    (site,) = (tmp_path / "env" / "lib").glob("python3*/site-packages")
    distribution(site, "torch", "2.9.0", folder="~orch-2.9.0.dist-info")
    distribution(site, "torch", "2.9.1", {"torch/__init__.py": f"__version__ = {VENDOR['torch']!r}\nversion = None\n"})
    found = interpreter.facts(str(box.python), {"PATH": "/usr/bin:/bin"})
    assert found.distributions["torch"] == VENDOR["torch"], "of two whole ones the imported version decides"
    assert f"torch=={VENDOR['torch']}\n" in constraints(found)


def test_vendor_builds_are_known_by_their_local_version() -> None:
    facts = interpreter.Facts(
        "python", distributions={"flash_attn": "2.6.1+das.dtk2604", "numpy": "1.26.4", "vllm": "0.18.1+das", "torch": "2.10.0"}
    )
    assert facts.vendor == {"flash_attn": "2.6.1+das.dtk2604", "torch": "2.10.0"}
