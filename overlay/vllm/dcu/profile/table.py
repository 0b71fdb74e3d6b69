# SPDX-License-Identifier: Apache-2.0
"""A profile for people: the terminal's table, and what changed since another profile.  Standard library only."""

from collections.abc import Iterator, Sequence

from vllm.dcu.evidence.binding import differences
from vllm.dcu.profile.report import Account, Group, Line, Profile

__all__ = ["as_text", "compared", "slower"]

_SHOWN = 20
"""Lines of one step; the others stand together on one, so that what is shown adds up."""

_DIFFERENT = 0.1
_NOISY = "something else ran beside it or the clock moved. Profile again on an idle machine before acting on this."


def as_text(profile: Profile, colour: bool = False) -> str:
    """The tables of every phase and their suggestions; `colour` makes the heads bold."""
    served = "graphs" if profile.captured else "eager" if profile.eager else "compiled, no graphs"
    head = [
        f"{profile.model} on {profile.binding.label}, {served}, {profile.context} tokens before the decoded ones",
        f"measured read rate {profile.read.median:.4g} GB/s ({profile.read.low:.4g} to {profile.read.high:.4g})",
    ]
    return "\n".join([*head, *(line for account in profile.accounts for line in _account(account, profile.read.median, colour))])


def _account(account: Account, read: float, colour: bool) -> Iterator[str]:
    what = f"decode, {account.rows} sequences" if account.phase == "decode" else f"prefill, {account.rows} tokens"
    step = account.step
    head = (
        f"{what}: {step.median / 1e3:.3f} ms a step ({step.low / 1e3:.3f} to {step.high / 1e3:.3f} in {step.runs}); "
        f"{account.profiled.median / 1e3:.3f} under the profiler"
    )
    yield from ("", f"\033[1m{head}\033[0m" if colour else head)
    yield f"  {'us a step':>12} {'share':>6} {'calls':>8}  what"
    for group in Group:
        if lines := [line for line in account.lines if line.group is group]:
            yield _row(sum(line.us for line in lines), step.median, sum(line.calls for line in lines), group.value)
    yield _row(account.unaccounted, step.median, None, "not accounted for (below zero: the profiler's own cost)")
    yield _row(step.median, step.median, None, "the step")
    if account.unaccounted > _DIFFERENT * step.median:
        yield f"  With the profiler the step was shorter: {_NOISY}"
    yield ""
    for line in account.lines[:_SHOWN]:
        yield _row(line.us, step.median, line.calls, _what(line, read))
    if rest := account.lines[_SHOWN:]:
        yield _row(sum(line.us for line in rest), step.median, sum(line.calls for line in rest), f"{len(rest)} more lines (profile.json)")
    if account.phase == "decode":
        yield ""
        yield "  What could be done, by the milliseconds a token that it could save at most:"
    for number, one in enumerate(account.suggestions, 1):
        yield f"  {number}. {one.ms:.3f} ms  [{one.kind.value}] {one.subject}"
        yield f"     figures: {', '.join(f'{name} {_figure(value)}' for name, value in one.figures.items())}"
        yield f"     run:     {one.command}"
        yield f"     wrong if {one.wrong_if}"
    if account.phase == "decode" and not account.suggestions:
        yield "  nothing of a hundredth of the step or more"


def _figure(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def _row(us: float, step: float, calls: float | None, what: str) -> str:
    count = f"{calls:8.5g}" if calls is not None else " " * 8
    return f"  {us:12.1f} {100 * us / step:5.1f}% {count}  {what}"


def _what(line: Line, read: float) -> str:
    if line.linear is None:
        place = " on the CPU" if line.place.value == "host" else ""
        names = line.kernel if line.kernel == line.operator or not line.operator else f"{line.operator} [{line.kernel}]"
        return f"{line.group.value}: {names}{place}"
    linear = line.linear
    why = f" [{', '.join(linear.reasons)}]" if linear.reasons else ""
    return (
        f"Linear {linear.m} x {linear.k} {linear.dtype} N={linear.n}: {linear.ran}, rules say {linear.choice}{why}; "
        f"{line.bytes / 1e6:.4g} MB, {line.gbs:.4g} GB/s, {100 * line.gbs / read:.1f}% of the read rate"
    )


def _moved(old: Line, new: Line) -> str:
    """How a line changed, where neither run's own spread explains it; empty where nothing did."""
    word = "slower" if new.low > old.high else "faster" if new.high < old.low else ""
    return word and f"{word}: {old.us:.1f} us ({old.low:.1f} to {old.high:.1f}) before, {new.us:.1f} ({new.low:.1f} to {new.high:.1f}) now"


def compared(before: Profile, now: Profile) -> tuple[str, ...]:
    """What got slower or faster beyond the noise of both, appeared or vanished, one sentence each; the largest change of a phase first."""
    differ = differences(before.binding, now.binding)
    found = [f"profiled on another machine or build: {', '.join(differ)} differ"] if differ else []
    for account in now.accounts:
        old = next((a for a in before.accounts if a.name == account.name), None)
        if old is None:
            found.append(f"{account.name} was not profiled before")
            continue
        if account.step.low > old.step.high or account.step.high < old.step.low:
            word = "slower" if account.step.median > old.step.median else "faster"
            found.append(f"{account.name}: the step is {word}: {old.step.median:.1f} us before, {account.step.median:.1f} now")
        found += [f"{account.name}: {sentence}" for _, sentence in sorted(_changes(old, account), key=lambda change: -change[0])]
    found += [f"{a.name} was profiled before and is not now" for a in before.accounts if a.name not in [n.name for n in now.accounts]]
    return tuple(found)


def _changes(old: Account, new: Account) -> Iterator[tuple[float, str]]:
    then, now = _by_key(old.lines), _by_key(new.lines)
    for key, line in now.items():
        if key not in then:
            yield line.us, f"appeared: {_name(line)}, {line.us:.1f} us"
        elif said := _moved(then[key], line):
            yield abs(line.us - then[key].us), f"{_name(line)} {said}"
    for key, line in then.items():
        if key not in now:
            yield line.us, f"vanished: {_name(line)}, {line.us:.1f} us"


def _by_key(lines: Sequence[Line]) -> dict[tuple[object, ...], Line]:
    """The longest line of each key."""
    return {line.key: line for line in reversed(lines)}


def _name(line: Line) -> str:
    if line.linear is not None:
        return f"Linear {line.linear.m} x {line.linear.k} N={line.linear.n} ({line.linear.ran})"
    return f"{line.operator} [{line.kernel}]" if line.operator else line.kernel


def slower(before: Profile, now: Profile) -> bool:
    """Whether a step of a phase that both have is slower beyond the noise of both."""
    steps = {account.name: account.step for account in before.accounts}
    return any(account.name in steps and account.step.low > steps[account.name].high for account in now.accounts)
