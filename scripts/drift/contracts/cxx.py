"""The little of C++ that a text contract needs: comments out, a definition's extent, the #if around an offset."""

from __future__ import annotations

import re

_TOKENS = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)


def without_comments(text: str) -> str:
    """The text with comments blanked; every offset and line stays where it was."""

    def blank(match: re.Match[str]) -> str:
        token = match[0]
        return re.sub(r"[^\n]", " ", token) if token.startswith("/") else token

    return _TOKENS.sub(blank, text)


def closing(text: str, opening: int) -> int:
    """Offset just after the bracket that closes the one at `opening`; strings are skipped."""
    pairs = {"{": "}", "(": ")"}
    want, have, depth, position = pairs[text[opening]], text[opening], 0, opening
    while position < len(text):
        token = _TOKENS.match(text, position)
        if token:
            position = token.end()
            continue
        if text[position] == have:
            depth += 1
        elif text[position] == want:
            depth -= 1
            if depth == 0:
                return position + 1
        position += 1
    return len(text)


def definitions(text: str, name: str) -> list[tuple[int, int]]:
    """Extents of the function definitions called `name`: from the line its declaration starts on to its closing brace."""
    plain = without_comments(text)
    found = []
    for match in re.finditer(rf"\b{re.escape(name)}\s*\(", plain):
        after = closing(plain, match.end() - 1)
        body = re.match(r"\s*(?:const|noexcept|\s)*\{", plain[after : after + 80])
        before = plain[max(0, match.start() - 200) : match.start()]
        if not body or re.search(r"[=.,(&!?]\s*$|\breturn\s*$", before):
            continue
        start = _declaration_start(plain, match.start())
        found.append((start, closing(plain, after + body.end() - 1)))
    return found


def _declaration_start(plain: str, at: int) -> int:
    """Back to the end of the previous statement, block or preprocessor line."""
    start = max(plain.rfind(c, 0, at) for c in (";", "}")) + 1
    directive = [m.end() for m in re.finditer(r"^[ \t]*#[^\n]*\n", plain[start:at], re.M)]
    start += directive[-1] if directive else 0
    while start < at and plain[start].isspace():
        start += 1
    return start


def guards(text: str, offset: int) -> list[str]:
    """The conditions of the #if blocks that hold `offset`, outermost first; an #else is written as a negation."""
    stack: list[str] = []
    for match in re.finditer(r"^[ \t]*#[ \t]*(ifdef|ifndef|if|elif|else|endif)\b(.*)$", without_comments(text)[:offset], re.M):
        word, rest = match[1], " ".join(match[2].split())
        if word == "ifdef":
            stack.append(f"defined({rest})")
        elif word == "ifndef":
            stack.append(f"!defined({rest})")
        elif word == "if":
            stack.append(re.sub(r"defined\s*\(?\s*(\w+)\s*\)?", r"defined(\1)", rest))
        elif word in ("elif", "else") and stack:
            stack[-1] = f"!({stack[-1]})" + (f" && {rest}" if word == "elif" else "")
        elif word == "endif" and stack:
            stack.pop()
    return stack


def active(conditions: list[str], defined: set[str]) -> bool | None:
    """Whether every condition holds with exactly `defined` macros set; None where one is not a plain defined() test."""
    result: bool | None = True
    for condition in conditions:
        expression = re.sub(r"defined\((\w+)\)", lambda m: "True" if m[1] in defined else "False", condition)
        expression = expression.replace("&&", " and ").replace("||", " or ").replace("!", " not ")
        if not re.fullmatch(r"(?:True|False|and|or|not|[()\s])+", expression):
            result = None
            continue
        if not _truth(expression):
            return False
    return result


def _truth(expression: str) -> bool:
    """Evaluate a text of True, False, and, or, not and brackets, without eval."""
    tokens = re.findall(r"True|False|and|or|not|[()]", expression)

    def disjunction(at: int) -> tuple[bool, int]:
        value, at = conjunction(at)
        while at < len(tokens) and tokens[at] == "or":
            right, at = conjunction(at + 1)
            value = value or right
        return value, at

    def conjunction(at: int) -> tuple[bool, int]:
        value, at = negation(at)
        while at < len(tokens) and tokens[at] == "and":
            right, at = negation(at + 1)
            value = value and right
        return value, at

    def negation(at: int) -> tuple[bool, int]:
        if tokens[at] == "not":
            value, at = negation(at + 1)
            return not value, at
        if tokens[at] == "(":
            value, at = disjunction(at + 1)
            return value, at + 1
        return tokens[at] == "True", at + 1

    return disjunction(0)[0]
