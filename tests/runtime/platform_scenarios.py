"""Questions put to the installed vLLM in fresh processes that see a fake sysfs, a fake amdsmi or a fake torch device."""

from __future__ import annotations

import importlib.util
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.rehearsal.scenarios import FAKES, Answer, Zygote, link_tree
from tests.fake_sysfs import AMD, HYGON, topology

__all__ = ["AMD", "DCU", "HYGON", "Ask", "installed_package"]

DCU = (HYGON, 90306)


def installed_package() -> Path:
    """Folder of the vllm package that this interpreter imports, found without importing it."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@dataclass(frozen=True)
class Ask:
    """Asks one process. `amdsmi`: the arch that a fake amdsmi names (None: there is no amdsmi)."""

    runner: Zygote
    tree: Path
    folder: Path

    def sysfs(self, *gpus: tuple[int, int], links: dict[tuple[int, int], int] | None = None) -> Path:
        """A KFD topology of `(vendor, gfx_target_version)` nodes."""
        number = sum(1 for _ in self.folder.iterdir())
        return topology(self.folder / f"kfd{number}", *gpus, links=links)

    def answer(
        self,
        code: str,
        kfd: Path | None = None,
        amdsmi: str | None = None,
        amdsmi_fails: str | None = None,
        env: Mapping[str, str] | None = None,
        hip: str | None = "6.3.26093",
        device: str | None = None,
        path: tuple[Path, ...] = (),
    ) -> Answer:
        environ = {"VLLM_DCU_TEST_KFD_ROOT": str(kfd or self.folder / "no-sysfs"), **(env or {})}
        if amdsmi is not None:
            environ["FAKE_AMDSMI_ARCH"] = amdsmi
        if amdsmi_fails is not None:
            environ["FAKE_AMDSMI_FAIL"] = amdsmi_fails
        fakes = (FAKES,) if amdsmi is not None or amdsmi_fails is not None else ()
        return self.runner.run(textwrap.dedent(code), [*path, self.tree, *fakes], environ, hip, device)

    def __call__(self, code: str, **given: Any) -> Any:
        """The value that `code` leaves in `result`; a failure there fails the test."""
        answer = self.answer(code, **given)
        assert answer.error is None, f"{answer.error}\n{answer.traceback}\n{answer.log}"
        return answer.value

    def cpu_tree(self) -> Path:
        """The package as a CPU build says it is, for sys.path."""
        return link_tree(installed_package(), self.folder / "cpu-build", "0.18.1+gfx936.1.cpu")
