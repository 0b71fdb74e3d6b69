"""Faults that the kernel itself injects: from a moment on, one system call of this process fails with one error (seccomp).

For child processes that end soon: a filter cannot be taken back. Writes to standard output and error, and memory that is mapped without
a file, stay whole, so that a process can say what it found.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

__all__ = ["CALLS", "ERRORS", "inject"]

# (x86_64, aarch64); -1: that architecture has no such call
CALLS = {
    "openat": (257, 56), "mkdir": (83, -1), "mkdirat": (258, 34), "write": (1, 64), "pwrite64": (18, 68), "ftruncate": (77, 46),
    "fallocate": (285, 47), "fstat": (5, 80), "newfstatat": (262, 79), "stat": (4, -1), "flock": (73, 32), "close": (3, 57),
    "mmap": (9, 222), "rename": (82, -1), "renameat": (264, 38), "unlink": (87, -1), "unlinkat": (263, 35), "getdents64": (217, 61),
    "chmod": (90, -1), "fchmodat": (268, 53), "read": (0, 63), "lseek": (8, 62), "fcntl": (72, 25), "ioctl": (16, 29),
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195),
}  # fmt: skip
"""What a counting path may call: files, folders, locks, maps, shared memory."""

ERRORS = tuple(getattr(errno, name) for name in ("ENOSPC", "EROFS", "ENOENT", "EACCES", "EIO", "EMFILE"))

_LOAD, _JUMP_EQUAL, _JUMP_GREATER, _RETURN = 0x20, 0x15, 0x25, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def _rules(call: str, number: int, error: int) -> list[tuple[int, int, int, int]]:
    fail, allow = (_RETURN, 0, 0, _ERRNO | error), (_RETURN, 0, 0, _ALLOW)
    first = [(_LOAD, 0, 0, 0), (_JUMP_EQUAL, 1, 0, number), allow]
    if call == "write":  # argument 0 is the file: what is above standard error
        return [*first, (_LOAD, 0, 0, 16), (_JUMP_GREATER, 0, 1, 2), fail, allow]
    if call == "mmap":  # argument 4 is the file, -1 where there is none
        return [*first, (_LOAD, 0, 0, 16 + 8 * 4), (_JUMP_EQUAL, 1, 0, 0xFFFFFFFF), fail, allow]
    return [*first, fail]


def inject(call: str, error: int) -> bool:
    """Let every later `call` of every thread of this process fail with `error`. False where the machine does not have or allow it.

    Raises:
        OSError: the kernel refused the filter.
    """
    column = {"x86_64": 0, "aarch64": 1}.get(platform.machine(), -1)
    if column < 0 or CALLS[call][column] < 0:
        return False
    rules = _rules(call, CALLS[call][column], error)
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rules), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    set_no_new_privileges, seccomp, filter_mode, all_threads = 38, (317, 277)[column], 1, 1
    if libc.prctl(set_no_new_privileges, 1, 0, 0, 0) or libc.syscall(seccomp, filter_mode, all_threads, header):
        raise OSError(ctypes.get_errno(), "the kernel took no seccomp filter")
    return True
