"""Every fatal error of the tools, its exit code and its sentence: what happened, why, what to do.

Exit codes are part of the contract; a code is never reused for another meaning.
"""

from __future__ import annotations

import errno

__all__ = [
    "CannotBuild",
    "CheckFailed",
    "DamagedDownload",
    "DirtyTree",
    "Fatal",
    "LockMismatch",
    "MissingInput",
    "NoNetwork",
    "NotRun",
    "PatchDoesNotApply",
    "RebaseConflict",
    "SeriesError",
    "SystemRefuses",
    "TreeBusy",
    "UnknownVersion",
    "UnsafeArchive",
    "UserError",
    "catalogue",
    "refused",
]


class Fatal(Exception):
    """A failure a person can act on. `str()` is one sentence each for what, why and what to do."""

    exit_code = 1

    def __init__(self, what: str, why: str, do: str) -> None:
        super().__init__(f"{what}\n  why: {why}\n  do:  {do}")
        self.what, self.why, self.do = what, why, do


class UserError(Fatal):
    """The command line or a variable has a value the tool does not take."""

    exit_code = 2


class UnknownVersion(Fatal):
    """The asked upstream release is not in upstream.toml."""

    exit_code = 3


class NoNetwork(Fatal):
    """The index could not be reached, or does not list the pinned file."""

    exit_code = 4


class DamagedDownload(Fatal):
    """A file's size or sha256 is not the pinned one."""

    exit_code = 5


class UnsafeArchive(Fatal):
    """An archive member would leave its folder, or is not a plain file, folder or inner link."""

    exit_code = 6


class SeriesError(Fatal):
    """The series and the patches folder disagree, or a patch breaks a rule of the series."""

    exit_code = 7


class PatchDoesNotApply(Fatal):
    """A patch was made for other bytes than the ones it is applied to."""

    exit_code = 8


class DirtyTree(Fatal):
    """build/vllm holds work that the tool would destroy."""

    exit_code = 9


class TreeBusy(Fatal):
    """Another run holds the lock."""

    exit_code = 10


class LockMismatch(Fatal):
    """The applied tree is not the one that patches/series.lock names."""

    exit_code = 11


class MissingInput(Fatal):
    """A file, program or package that the step needs is not there."""

    exit_code = 12


class CannotBuild(Fatal):
    """This machine cannot build the asked target."""

    exit_code = 13


class CheckFailed(Fatal):
    """A check ran and found a fault."""

    exit_code = 14


class NotRun(Fatal):
    """A check could not run here, and STRICT=1 asked that all do."""

    exit_code = 15


class RebaseConflict(Fatal):
    """The rebase stopped at a patch that needs a person."""

    exit_code = 16


class SystemRefuses(Fatal):
    """The operating system refused: the disk is full, a folder is not writable, or something else has a name that the step needs."""

    exit_code = 17


_REFUSALS = {
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "make room in your quota",
    errno.EROFS: "work in a copy of the repository that can be written",
    errno.EACCES: "give this user the right to it, or work in a copy",
    errno.EPERM: "give this user the right to it, or work in a copy",
    errno.EISDIR: "move that folder away: a file belongs there",
    errno.ENOTDIR: "move that file away: a folder belongs there",
    errno.ELOOP: "move that link away: it leads to itself",
    errno.EEXIST: "move what is there away",
    errno.ENOTEMPTY: "move what is there away",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "end programs that hold many files open",
    errno.ENOMEM: "end other programs, or give the machine more memory",
    errno.EIO: "look at the disk: `dmesg` has the kernel's words",
}


def refused(error: OSError, doing: str) -> SystemRefuses:
    """The sentence for an error of the operating system that no step foresaw."""
    names = " -> ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    return SystemRefuses(
        f"`{doing}` was stopped by the system" + (f" at {names}" if names else ""),
        error.strerror or str(error),
        _REFUSALS.get(error.errno or 0, "correct that") + ", and run the same command again: nothing half-written is taken for whole",
    )


def catalogue() -> list[tuple[int, str, str]]:
    """Rows (exit code, name, meaning) of every fatal error, by code."""
    rows = [(c.exit_code, c.__name__, (c.__doc__ or "").strip()) for c in Fatal.__subclasses__()]
    return sorted(rows)
