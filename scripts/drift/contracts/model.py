"""What a contract check reads (a tree), what it notes (facts) and what it says (findings)."""

from __future__ import annotations

import difflib
import io
import json
import posixpath
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from scripts.common import errors

#: OPEN: a question that could not be answered. It is never taken for "no": it counts in the summary and in the exit code.
BLOCK, OPEN, REVIEW, INFO = "BLOCK", "NOT EVALUATED", "REVIEW", "INFO"
LEVELS = (BLOCK, OPEN, REVIEW, INFO)

#: What a scan needs of a release. The rest of the archive (docs, upstream's tests, benchmarks) is not read.
WANTED_FILES = ("CMakeLists.txt", "setup.py", "pyproject.toml", "MANIFEST.in")
WANTED_FOLDERS = {
    "cmake": (".cmake", ".py", ".txt", ".in"),
    "csrc": ("",),  # whatever its name ends in: an include can name anything
    "requirements": (".txt", ".in"),
    "vllm": (".py",),
}


_LF = ("CMakeLists.txt", "setup.py", "csrc/rocm/skinny_gemms.cu", "vllm/platforms/rocm.py")


@dataclass(frozen=True, eq=False)
class Tree:
    """The text of one tree: path inside it -> bytes. `patched` says that our series and overlay are in it.

    `pristine`: of a carried release, the facts of the release as it is, where they are known.
    """

    version: str
    files: Mapping[str, bytes]
    patched: bool = False
    pristine: Facts | None = None

    def __post_init__(self) -> None:
        if path := next((path for path in _LF if b"\r\n" in self.files.get(path, b"")), None):
            raise errors.UserError(
                f"the tree of {self.version} has Windows line ends (CRLF), first seen in {path}",
                "upstream has none there: git's core.autocrlf, an editor or an archiver changed every text",
                "check the tree out again with `git -c core.autocrlf=false`, or give an unchanged one",
            )

    def __contains__(self, path: str) -> bool:
        return path in self.files

    def text(self, path: str) -> str:
        """The file as text, or "" where the tree has no such file."""
        return self.files.get(path, b"").decode("utf-8", "replace")

    def under(self, folder: str, *suffixes: str) -> list[str]:
        """Paths in `folder` (with a trailing slash), sorted, that end in one of `suffixes`."""
        return sorted(p for p in self.files if p.startswith(folder) and (not suffixes or p.endswith(suffixes)))

    def containing(self, token: str, folder: str, *suffixes: str) -> list[str]:
        """The paths of `under` whose bytes hold `token`: cheap, before anything is parsed."""
        raw = token.encode()
        return [p for p in self.under(folder, *suffixes) if raw in self.files[p]]

    def write(self, root: Path, *folders: str) -> None:
        """Write the files of `folders` (or equal to one of them) below `root`."""
        for path, data in self.files.items():
            if any(path == f or path.startswith(f + "/") for f in folders):
                target = root / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)


@dataclass(frozen=True)
class Fact:
    """One thing a tree says: `key` is stable between releases, `value` is compared, `region` is its text."""

    contract: str
    key: str
    value: str
    path: str = ""
    line: int = 0
    region: str = ""


@dataclass(frozen=True)
class Finding:
    """One row of the page: what changed, where, how serious, and the upstream text that did it.

    `closed` says, of a carried tree, by what of ours a BLOCK of the release as it is does not hold there; the row is INFO then.
    """

    level: str
    contract: str
    key: str
    path: str
    line: int
    sentence: str
    hunk: str = ""
    closed: str = ""


@dataclass(frozen=True)
class Facts:
    """All facts of one tree, by contract and key."""

    version: str
    items: tuple[Fact, ...] = field(default=())

    def of(self, contract: str, prefix: str = "") -> dict[str, Fact]:
        """The facts of one contract whose key starts with `prefix`."""
        return {f.key: f for f in self.items if f.contract == contract and f.key.startswith(prefix)}

    def to_json(self) -> str:
        return json.dumps({"version": self.version, "facts": [asdict(f) for f in self.items]}, indent=0)

    @staticmethod
    def from_json(text: str) -> Facts:
        data = json.loads(text)
        return Facts(data["version"], tuple(Fact(**f) for f in data["facts"]))


def wanted(path: str) -> bool:
    """Whether a scan reads this path."""
    if path in WANTED_FILES:
        return True
    top = path.split("/", 1)[0]
    return path.endswith(WANTED_FOLDERS.get(top, ("\0",)))


def tree_from_directory(root: Path, version: str, patched: bool = False) -> Tree:
    """Read a work tree. Nothing in it is changed."""
    files: dict[str, bytes] = {}
    links: dict[str, str] = {}
    for path in [*(root / name for name in WANTED_FILES), *(p for folder in WANTED_FOLDERS for p in sorted((root / folder).rglob("*")))]:
        inside = path.relative_to(root).as_posix()
        if path.is_symlink():
            links[inside] = str(path.readlink())
        elif wanted(inside) and path.is_file():
            files[inside] = path.read_bytes()
    return Tree(version, _followed(files, links), patched)


def tree_from_sdist(archive: Path, version: str) -> Tree:
    """Read an sdist without unpacking it: names are only compared, nothing is written anywhere."""
    return _from_tar(archive.read_bytes(), "r:gz", version, False, top=1)


def tree_from_tar(data: bytes, version: str, patched: bool) -> Tree:
    """Read what `git archive` of a commit gives."""
    return _from_tar(data, "r:", version, patched, top=0)


def _from_tar(data: bytes, mode: Literal["r:gz", "r:"], version: str, patched: bool, top: int) -> Tree:
    """`top`: how many leading folders are not the tree's."""
    files: dict[str, bytes] = {}
    links: dict[str, str] = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode=mode) as tar:
        for member in tar:
            inside = PurePosixPath(*PurePosixPath(member.name).parts[top:]).as_posix()
            if member.issym() and inside.split("/", 1)[0] in (*WANTED_FOLDERS, *WANTED_FILES):
                links[inside] = member.linkname
            elif member.isreg() and wanted(inside) and (stream := tar.extractfile(member)) is not None:
                files[inside] = stream.read()
    return Tree(version, _followed(files, links), patched)


def _followed(files: dict[str, bytes], links: Mapping[str, str]) -> dict[str, bytes]:
    """The files with links read as what they lead to, file or folder, as Python and the compiler do; what leads outside is not there."""
    out = dict(files)
    for _ in range(4):  # a link may lead to a link
        for path, target in links.items():
            end = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
            found = {path + name.removeprefix(end): data for name, data in out.items() if name == end or name.startswith(end + "/")}
            out.update({name: data for name, data in found.items() if wanted(name)})
    return out


def changes(old: Mapping[str, Fact], new: Mapping[str, Fact]) -> Iterator[tuple[str, Fact | None, Fact | None]]:
    """Keys whose value differs, in a fixed order: (key, before or None, after or None)."""
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if before is None or after is None or before.value != after.value:
            yield key, before, after


def hunk(before: str, after: str, limit: int = 60) -> str:
    """A unified diff of two regions, cut at `limit` lines so that a page stays a page."""
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), "pinned", "new", lineterm="", n=2))[2:]
    if len(lines) > limit:
        lines = [*lines[:limit], f"... {len(lines) - limit} more lines"]
    return "\n".join(lines)


def closing(finding: Finding, by: str) -> Finding:
    """`finding` as it stands in a tree in which something of ours answers it; as it is where `by` is empty."""
    return replace(finding, level=INFO, closed=by, sentence=f"{finding.sentence} Closed by {by}.") if by else finding


def line_of(text: str, offset: int) -> int:
    """1-based line of a character offset."""
    return text.count("\n", 0, offset) + 1


def sort_findings(found: Iterable[Finding]) -> list[Finding]:
    """BLOCK first, then by contract, path and line."""
    return sorted(found, key=lambda f: (LEVELS.index(f.level), f.contract, f.path, f.line, f.key))
