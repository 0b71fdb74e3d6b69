"""Our series on real releases: carried without a person, and what upstream opens for gfx936 is shut again, by the series and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache

import pytest

from scripts.common.git import Repo, new_repository
from scripts.drift import contracts
from scripts.drift.contracts import arch_truth, build_set, cmake_eval
from scripts.drift.contracts.model import BLOCK, Facts, Tree
from scripts.matrix.rows import ROUTED, patched_tree
from scripts.rebase.threeway import APPLIES, MOVED
from scripts.rebase.walk import Row, Step, one_release
from scripts.series import patch
from scripts.series.commits import apply_series, overlay_commit, overlay_files
from scripts.upstream.releases import read_pin
from tests.integration.upstream import tree

WAY = ("0.19.0", "0.22.1", "0.27.1", "0.33.0")


def commit_of(repo: Repo, source: Tree) -> str:
    """A commit of the part of a release that is scanned and patched: faster than the whole, the same blobs."""
    stream: list[bytes] = []
    entries: list[bytes] = []
    for number, (path, data) in enumerate(sorted(source.files.items()), 1):
        stream.append(b"blob\nmark :%d\ndata %d\n%s\n" % (number, len(data), data))
        mode = b"100755" if path == "vllm/envs.py" else b"100644"
        entries.append(b"M %s :%d %s\n" % (mode, number, path.encode()))
    mark = len(entries) + 1
    stream.append(b"commit refs/heads/%s\nmark :%d\n" % (source.version.encode(), mark))
    stream.append(b"committer t <t@t> 0 +0000\ndata 2\nx\n" + b"".join(entries))
    repo.raw("fast-import", "--quiet", stdin=b"".join(stream))
    return repo.out("rev-parse", f"refs/heads/{source.version}")


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Repo, dict[str, Step]]:
    """The series at the pinned release and at each of WAY."""
    repo = new_repository(tmp_path_factory.mktemp("objects"))
    pinned, patches = read_pin().version, patch.load()
    base = commit_of(repo, tree(pinned))
    rows = tuple(Row(p.name, "pinned", c) for p, c in zip(patches, apply_series(repo, base, patches), strict=True))
    found = {pinned: Step(pinned, base, rows)}
    for before, version in zip((pinned, *WAY), WAY, strict=False):
        done = one_release(repo, found[before], version, commit_of(repo, tree(version)), {p.name: p.message for p in patches}, {})
        assert isinstance(done, Step), f"{version}: {done}"
        found[version] = done
    return repo, found


@cache
def _patched(repo: Repo, step: Step) -> Tree:
    head, _ = overlay_commit(repo, step.commits[-1], overlay_files())
    return patched_tree(repo, head, step.version)


@cache
def _facts(repo: Repo, step: Step) -> Facts:
    return contracts.collect(_patched(repo, step))


@pytest.mark.parametrize("version", WAY)
def test_every_patch_is_carried_without_a_person(steps: tuple[Repo, dict[str, Step]], version: str) -> None:
    assert {row.verdict for row in steps[1][version].rows} <= {APPLIES, MOVED}


@pytest.mark.parametrize("version", WAY)
def test_nothing_that_upstream_opens_stays_open_and_only_llmm1_is_built(steps: tuple[Repo, dict[str, Step]], version: str) -> None:
    repo, found = steps
    facts = _facts(repo, found[version])
    assert [f.sentence for f in contracts.judge(_facts(repo, found[read_pin().version]), facts) if f.level == BLOCK] == []
    sources = [key.split(":", 2)[2] for key in facts.of(build_set.ID, f"source:{build_set.NATIVE}:")]
    assert sorted(sources) == sorted(ROUTED)


@pytest.mark.parametrize("version", WAY)
def test_every_predicate_of_the_pinned_release_has_the_same_answer(steps: tuple[Repo, dict[str, Step]], version: str) -> None:
    repo, found = steps

    def truths(facts: Facts) -> dict[str, object]:
        rows: Mapping[str, dict[str, object]] = {k: json.loads(f.value) for k, f in facts.of(arch_truth.ID).items()}
        return {
            k: r["answer"]
            for k, r in rows.items()
            if r["arch-dependent"] and re.match(r"(rocm\.(_ON|on_|use_)|RocmPlatform\.(is|supports|use)_)", k)
        }

    pinned, now = truths(_facts(repo, found[read_pin().version])), truths(_facts(repo, found[version]))
    assert len(pinned) > 10
    assert {k: now[k] for k in pinned if k in now} == {k: v for k, v in pinned.items() if k in now}
    assert [k for k, v in now.items() if k.startswith("rocm.") and v == {"value": True}] == ["rocm._ON_GFX936", "rocm.on_gfx936()"]


def test_without_the_seal_the_predicates_of_0_27_1_open_again(steps: tuple[Repo, dict[str, Step]]) -> None:
    """The planted fault: the series minus its one decisive line is found wanting."""
    repo, found = steps
    whole = _patched(repo, found["0.27.1"])
    path = "vllm/platforms/rocm.py"
    line = "_GCN_ARCH = resolve_gcn_arch(_query_gcn_arch_from_amdsmi, _get_gcn_arch)"
    assert whole.text(path).count(line) == 1
    planted = Tree("planted", {**whole.files, path: whole.text(path).replace(line, "_GCN_ARCH = _get_gcn_arch()").encode()}, patched=True)
    facts = Facts("planted", tuple(arch_truth.collect(planted)))
    open_again = {f.key for f in arch_truth.judge(_facts(repo, found[read_pin().version]), facts) if f.level == BLOCK}
    assert {"rocm._ON_CDNA", "rocm.on_cdna()", "RocmPlatform.supports_fp8()", "rocm.use_rocm_custom_paged_attention()"} <= open_again


def test_without_the_routing_the_skinny_target_of_0_27_1_is_refused(steps: tuple[Repo, dict[str, Step]]) -> None:
    repo, found = steps
    whole = _patched(repo, found["0.27.1"])
    path = "cmake/dcu.cmake"
    planted = Tree("planted", {**whole.files, path: whole.text(path).replace("dcu_unlink(_rocm_C ${_target})", "").encode()}, patched=True)
    with pytest.raises(cmake_eval.EvaluationFailed, match="_rocm_C_skinny would compile"):
        cmake_eval.evaluate(planted)


@pytest.mark.parametrize("version", ["0.18.1", *WAY])
def test_a_mixed_arch_list_keeps_upstreams_units_for_the_others_and_ours_for_the_dcu(
    steps: tuple[Repo, dict[str, Step]], version: str
) -> None:
    repo, found = steps
    targets = cmake_eval.evaluate(_patched(repo, found[version]), "gfx936;gfx90a").targets
    ours = {
        name
        for name, target in targets.items()
        if "gfx936" in target.arches and any(re.fullmatch(r"csrc/rocm/[^/]+", s) for s in target.sources)
    }
    assert ours == {"_rocm_C_dcu"}
    assert targets["_rocm_C_dcu"].sources == ["csrc/rocm/dcu_llmm1.cu"]
    assert "--offload-compress" not in targets["_rocm_C_dcu"].flags
    skinny = [t.arches for t in targets.values() if "csrc/rocm/skinny_gemms.cu" in t.sources]
    assert skinny == [["gfx90a"]]
