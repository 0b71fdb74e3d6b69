"""A fake DTK and a fake HIP torch, for tests of the device build on a machine that has neither.

Nothing made with it is for gfx936. No public compiler knows that arch, so the fake compiler records what it was asked for
and compiles for the stand-in gfx906 instead; the tools under test have to find that out by themselves, from the result.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from scripts.audit.toolchain import Toolchain
from scripts.common.paths import ROOT
from tests.machine import program

__all__ = ["ASKED", "STAND_IN", "FakeDtk", "make"]

ASKED, STAND_IN = "gfx936", "gfx906"
HIP = "6.3.26093"

# Reads unset variables, prints, returns non-zero: what the vendor's does under `set -eu`.
ENV_SH = """\
echo "DTK environment"
export ROCM_PATH={prefix}
export HIP_PATH=${{ROCM_PATH}}
export PATH=${{ROCM_PATH}}/bin:${{ROCM_PATH}}/lib/llvm/bin:$PATH
export LD_LIBRARY_PATH=${{ROCM_PATH}}/lib:${{LD_LIBRARY_PATH}}
export DTK_FAKE_PATHS=${{ROCM_PATH}}/include:$DTK_FAKE_NEVER_SET
[ -n "$DTK_FAKE_NEVER_SET" ] && export DTK_FAKE_OPTION=1
"""

# gfx936 becomes gfx906, which the source refuses unless told that it is a stand-in. Everything else is passed on.
COMPILER = """\
#!{python} -IS
import json, os, sys
tool, asked, stand_in = {tool!r}, {asked!r}, {stand_in!r}
words = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps([os.path.basename(sys.argv[0]), *words]) + "\\n")
if os.path.exists({log!r} + ".kill") and "-c" in words and "/csrc/" in words[-1]:
    os.kill(os.getpid(), 9)
out = [word.replace("=" + asked, "=" + stand_in) if word.startswith("--offload-arch") else word for word in words]
stands_in = ["-DVLLM_DCU_STAND_IN"] if out != words else []
os.environ["LIBRARY_PATH"] = {libraries!r}
os.execv(tool, [tool, *out, *stands_in, *{own!r}])
"""

FAKE_TORCH = {
    "torch/__init__.py": """\
import os
if "{prefix}/lib" not in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
    raise ImportError("libgalaxyhip.so.5: cannot open shared object file: No such file or directory")
__version__ = "2.10.0+das.fake"
class version:
    hip = {hip!r}
    cuda = None
from torch import utils
class ops:
    pass
""",
    "torch/utils/__init__.py": """\
from pathlib import Path
cmake_prefix_path = str(Path(__file__).parent.parent / "share" / "cmake")
""",
    "torch/utils/cpp_extension.py": """\
import os
ROCM_HOME = os.environ.get("ROCM_PATH")
COMMON_HIP_FLAGS = ["-D__HIP_PLATFORM_AMD__=1", "-DUSE_ROCM=1", "-DHIPBLAS_V2", "-fPIC"]
COMMON_HIPCC_FLAGS = ["-DCUDA_HAS_FP16=1", "-D__HIP_NO_HALF_OPERATORS__=1", "-D__HIP_NO_HALF_CONVERSIONS__=1",
                      "-DHIP_ENABLE_WARP_SYNC_BUILTINS=1"]
""",
    "torch/share/cmake/Torch/TorchConfig.cmake": """\
set(HIP_FOUND TRUE)
set(ROCM_VERSION_DEV_MAJOR 6)
set(AUDIT_TORCH_VERSION "2.10.0")
set(AUDIT_TORCH_INCLUDE "{include}")
set(AUDIT_HIP_INCLUDE "{hip_include}")
include("{audit_torch}/TorchConfig.cmake")
""",
    "torch-2.10.0+das.fake.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 2.10.0+das.fake\n",
    "torch-2.10.0+das.fake.dist-info/RECORD": "",
}


@dataclass(frozen=True)
class FakeDtk:
    """What `make` made.

    Attributes:
        prefix: stands for /opt/dtk.
        env_sh: its env.sh.
        python: an interpreter whose torch says that it is built for HIP.
        log: every call of the compiler, one JSON list a line.
    """

    prefix: Path
    env_sh: Path
    python: Path
    log: Path

    def calls(self) -> list[list[str]]:
        """Every call of the compiler so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.is_file() else []

    def compiles(self) -> list[list[str]]:
        """Those that compile a device unit of the tree."""
        return [call for call in self.calls() if "-c" in call and call[-1].endswith(".hip") and "/csrc/" in call[-1]]

    def kill_compilers(self, on: bool) -> None:
        """Let every compile of a device unit end by SIGKILL, as the kernel does when memory runs out."""
        switch = self.log.with_name(self.log.name + ".kill")
        switch.touch() if on else switch.unlink(missing_ok=True)


def make(root: Path, toolchain: Toolchain, torch: Path) -> FakeDtk:
    """A fake DTK below `root` around the private toolchain, and a Python whose fake torch has the headers of `torch`'s folder."""
    prefix, log = root / "opt" / "dtk", root / "compiler-calls.jsonl"
    programs = prefix / "lib" / "llvm" / "bin"
    programs.mkdir(parents=True)
    (prefix / "bin").mkdir()
    for name in ("include", "share"):
        (prefix / name).symlink_to(toolchain.rocm / name)
    (prefix / "lib" / "x86_64-linux-gnu").symlink_to(toolchain.libraries)
    (prefix / "lib" / "cmake").symlink_to("x86_64-linux-gnu/cmake")
    # Debian's HIP package counts folders upwards from lib/<machine>/cmake, one more than here.
    (prefix.parent / "lib").symlink_to("dtk/lib")
    own = [
        f"--rocm-path={prefix}", f"--rocm-device-lib-path={toolchain.device_libs}", "-Wno-unused-command-line-argument",
        "-Wl,--allow-shlib-undefined",
    ]  # fmt: skip
    for name in ("clang++", "clang"):
        said = {"python": sys.executable, "tool": str(toolchain.tool(name)), "asked": ASKED, "stand_in": STAND_IN}
        program(programs / name, COMPILER.format(**said, log=str(log), libraries=str(toolchain.libraries), own=own))
    for name in ("ld.lld", "lld", "llvm-readelf", "llvm-objdump", "llvm-cxxfilt", "llvm-objcopy", "clang-offload-bundler"):
        (programs / name).symlink_to(toolchain.tool(name))
    (prefix / "env.sh").write_text(ENV_SH.format(prefix=prefix))
    return FakeDtk(prefix, prefix / "env.sh", _python(root / "python", prefix, torch), log)


def _python(folder: Path, prefix: Path, torch: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    values = {
        "hip": HIP,
        "prefix": prefix,
        "include": torch / "include",
        "hip_include": prefix / "include",
        "audit_torch": ROOT / "scripts" / "audit" / "torch",
    }
    for name, text in FAKE_TORCH.items():
        file = site / name
        file.parent.mkdir(parents=True, exist_ok=True)
        for key, value in values.items():
            text = text.replace("{" + key + "!r}", repr(value)).replace("{" + key + "}", str(value))
        file.write_text(text)
    shutil.copytree(torch / "utils" / "hipify", site / "torch" / "utils" / "hipify")  # torch's own, unchanged
    return folder / "bin" / "python"
