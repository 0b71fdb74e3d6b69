# SPDX-License-Identifier: Apache-2.0
"""The adaptation's environment variables and the one grammar of their values.  Standard library only.

`vllm/envs.py` imports this very early, so nothing heavier may be imported here. `docs/environment.md` is generated from
`VARIABLES`. A value that nobody can read is an error that names the variable; it is never silently "off".
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

__all__ = [
    "VARIABLES",
    "EnvError",
    "Mode",
    "Switches",
    "Variable",
    "as_markdown",
    "beside",
    "environment_variables",
    "evidence_file",
    "package_name",
    "parse_capabilities",
    "parse_switch",
    "read_switches",
    "signatures_dir",
    "stats_dir",
]

CAPABILITIES = "VLLM_DCU_CAPABILITIES"
STATS_DIR = "VLLM_DCU_STATS_DIR"
EVIDENCE = "VLLM_DCU_EVIDENCE"
SIGNATURES = "VLLM_DCU_SIGNATURES"
BESIDE = "VLLM_DCU_BESIDE"
SKINNY_GEMM = "VLLM_ROCM_USE_SKINNY_GEMM"
BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"

_ON = frozenset({"1", "true", "on", "yes"})
_OFF = frozenset({"0", "false", "off", "no"})
_PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_ID = re.compile(r"[a-z0-9]+(?:[-_.][a-z0-9]+)*")


class EnvError(ValueError):
    """An environment variable has a value that cannot be read. The message names the variable and the values allowed."""


class Mode(Enum):
    """What the user asked for one capability."""

    AUTO = "auto"
    OFF = "off"
    FORCE = "force"


@dataclass(frozen=True)
class Switches:
    """What the environment asks for. `capabilities` holds only the capabilities that were named."""

    skinny_gemm: bool = True
    batch_invariant: bool = False
    capabilities: Mapping[str, Mode] = field(default_factory=dict)

    def mode(self, ident: str) -> Mode:
        """The mode of one capability; AUTO when it was not named."""
        return self.capabilities.get(ident, Mode.AUTO)


def parse_switch(name: str, value: str | None, default: bool) -> bool:
    """Read an on/off value: `1 true on yes`, `0 false off no`, any case, blanks around ignored, empty means `default`.

    Raises:
        EnvError: for any other value; the message names `name`.
    """
    word = (value or "").strip().lower()
    if not word:
        return default
    if word in _ON:
        return True
    if word in _OFF:
        return False
    raise EnvError(f"{name}={value!r} is neither on (1, true, on, yes) nor off (0, false, off, no): correct or unset it.")


def parse_capabilities(value: str | None, name: str = CAPABILITIES) -> dict[str, Mode]:
    """Read `id=off|auto|force, ...`; on-words mean auto and off-words mean off. Empty entries are allowed.

    Raises:
        EnvError: for an entry without `=`, an identifier that cannot be one, an unknown mode, or an identifier named twice.
    """
    modes: dict[str, Mode] = {}
    for entry in (value or "").split(","):
        if not entry.strip():
            continue
        ident, sign, word = (part.strip() for part in entry.partition("="))
        if not sign:
            raise EnvError(f"{name}: {entry.strip()!r} is not of the form id=off, id=auto or id=force.")
        if not _ID.fullmatch(ident):
            raise EnvError(f"{name}: {ident!r} cannot be the id of a capability.")
        if ident in modes:
            raise EnvError(f"{name} names {ident!r} twice: keep one entry.")
        modes[ident] = _mode(name, ident, word.lower())
    return modes


def _mode(name: str, ident: str, word: str) -> Mode:
    if word in _ON:
        return Mode.AUTO
    if word in _OFF:
        return Mode.OFF
    try:
        return Mode(word)
    except ValueError:
        raise EnvError(f"{name}: {ident}={word!r} is not one of off, auto, force.") from None


def _batch_invariant(value: str | None) -> bool:
    """Whether batch-invariant mode is, or may have been meant to be, on.

    Upstream reads an integer and takes anything else for off. Here a value that is not clearly off closes the gate: the
    generic operator is right in either reading.
    """
    word = (value or "").strip().lower()
    if not word or word in _OFF:
        return False
    try:
        return int(word) != 0
    except ValueError:
        return True


def read_switches(environ: Mapping[str, str] | None = None) -> Switches:
    """Read every switch of the gate from `environ` (the process's own by default).

    `VLLM_ROCM_USE_SKINNY_GEMM` is upstream's. It keeps its meaning; only its grammar is this module's, because upstream
    takes "yes" and " 1 " for off without a word.

    Raises:
        EnvError: for a value that cannot be read.
    """
    source = os.environ if environ is None else environ
    return Switches(
        skinny_gemm=parse_switch(SKINNY_GEMM, source.get(SKINNY_GEMM), default=True),
        batch_invariant=_batch_invariant(source.get(BATCH_INVARIANT)),
        capabilities=parse_capabilities(source.get(CAPABILITIES)),
    )


def package_name(name: str) -> str:
    """A package's name as packages are compared by: `vllm_hcu` is `vllm-hcu`."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def beside(environ: Mapping[str, str] | None = None) -> str:
    """The package beside whose platform plugin the gate is to stand, as packages are compared by; empty: beside none.

    Raises:
        EnvError: a value that cannot be a package's name.
    """
    value = (os.environ if environ is None else environ).get(BESIDE, "").strip()
    if not value or value.lower() in _OFF:
        return ""
    if value.lower() in _ON or not _PACKAGE.fullmatch(value):
        raise EnvError(f"{BESIDE}={value!r} names no package: give the one that the platform plugin comes from (vllm-hcu), or unset it.")
    return package_name(value)


def stats_dir(environ: Mapping[str, str] | None = None) -> Path | None:
    """The folder for counter files, or None when counters stay in memory."""
    source = os.environ if environ is None else environ
    value = source.get(STATS_DIR, "").strip()
    return Path(value) if value else None


def evidence_file(environ: Mapping[str, str] | None = None) -> Path | None:
    """The site's evidence file, which `verify` writes and the gate reads; None where there is no home to keep it in."""
    source = os.environ if environ is None else environ
    if value := source.get(EVIDENCE, "").strip():
        return Path(value)
    if base := source.get("VLLM_CONFIG_ROOT"):
        return Path(base) / "dcu" / "evidence.json"
    base = source.get("XDG_CONFIG_HOME") or (source.get("HOME") and str(Path(source["HOME"]) / ".config"))
    return Path(base) / "vllm" / "dcu" / "evidence.json" if base else None


def signatures_dir(environ: Mapping[str, str] | None = None) -> Path | None:
    """The folder for `verify`'s capture of call signatures, or None: nothing is captured."""
    source = os.environ if environ is None else environ
    value = source.get(SIGNATURES, "").strip()
    return Path(value) if value else None


@dataclass(frozen=True)
class Variable:
    """One environment variable: how it is read and what the documentation says about it."""

    name: str
    read: Callable[[], Any]
    values: str
    meaning: str
    ours: bool = True


VARIABLES: tuple[Variable, ...] = (
    Variable(
        CAPABILITIES,
        lambda: parse_capabilities(os.environ.get(CAPABILITIES)),
        "`id=off`, `id=auto`, `id=force`, separated by commas; unset: all auto",
        "Switches one capability. `off` closes it: the generic operator runs, bit for bit. `force` opens it although the "
        "toolchain differs from its record's or its site evidence lapsed, and says so in a warning; it never overrides a kernel precondition, a "
        "missing operator or code object, or another switch. An unknown id is an error.",
    ),
    Variable(
        STATS_DIR,
        stats_dir,
        "a folder, made if it is missing; unset: counters stay in memory",
        "Where each process keeps its dispatch counters, half a second behind its memory. A folder that is removed, full or read-only costs "
        "one warning and no call. `python -m vllm.dcu counters FOLDER` adds the processes up at any time and writes nothing.",
    ),
    Variable(
        EVIDENCE,
        evidence_file,
        "a file; unset: `dcu/evidence.json` in vLLM's configuration folder",
        "The site's own evidence: `verify` writes it, the gate reads it once when a process starts. See `docs/verify.md`.",
    ),
    Variable(
        SIGNATURES,
        signatures_dir,
        "a folder; unset: nothing is captured",
        "For `verify`: writes every distinct call signature of the unquantized GEMM there. Not for serving.",
    ),
    Variable(
        BESIDE,
        beside,
        "the package of a platform plugin, `vllm-hcu`; unset, empty or off: none",
        "Serve beside that plugin: platform, attention and all else are the plugin's; the gate stands at every unquantized Linear and dispatches by "
        "evidence that was seen beside this very plugin and version. With another platform it is an error. Part of the compile cache's key. "
        "See `docs/platform.md`.",
    ),
    Variable(
        SKINNY_GEMM,
        lambda: parse_switch(SKINNY_GEMM, os.environ.get(SKINNY_GEMM), default=True),
        "on: `1 true on yes`; off: `0 false off no`; any case, blanks ignored; unset or empty: on",
        "Upstream's switch. On a DCU it closes every capability. Elsewhere upstream reads it, and takes all but `1` and `true` for off.",
        ours=False,
    ),
    Variable(
        BATCH_INVARIANT,
        lambda: _batch_invariant(os.environ.get(BATCH_INVARIANT)),
        "upstream's integer; on a DCU whatever is not clearly off counts as on",
        "Upstream's batch-invariant mode. On a DCU it closes every capability, also for callers that use the operator directly.",
        ours=False,
    ),
)

environment_variables: dict[str, Callable[[], Any]] = {v.name: v.read for v in VARIABLES if v.ours}
"""What `vllm/envs.py` adds to its own table. Only BESIDE changes a compiled graph; compile_factors leaves the others out (the operator is opaque)."""


def as_markdown() -> str:
    """The table of `docs/environment.md`."""
    lines = ["| variable | values | meaning |", "|---|---|---|"]
    lines += [f"| `{v.name}` | {v.values} | {v.meaning} |" for v in VARIABLES]
    return "\n".join(lines) + "\n"
