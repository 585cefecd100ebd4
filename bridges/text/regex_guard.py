"""Whether a regular expression can take exponential time: a repetition inside a repetition."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class _Branch:
    """One alternative of a group, as far as it has been read."""

    unbounded: bool = False  # holds a repetition without an upper bound
    anchor: bool = False  # holds something that must match, once: it tells the rounds apart


def backtracks(pattern: str) -> bool:
    r"""Return whether an unbounded repetition repeats a body that can itself match in many ways.

    Such is `(a+)+` or `(\w+\s?)*`: a body of nothing but repetitions and optional parts, so that
    a text splits into rounds in exponentially many ways. `(a+b)*` is not: each round ends in its
    `b`. Possessive repetitions and atomic groups never give back what they matched.

    Args:
        pattern: in the syntax of Oniguruma, as the tokenizers library reads it.

    Returns:
        True for such a body. Other slow patterns exist; the time limit catches them.
    """
    groups: list[list[_Branch]] = [[_Branch()]]
    atomic = [False]
    position = 0
    while position < len(pattern):
        character = pattern[position]
        if character == "|":
            groups[-1].append(_Branch())
            position += 1
            continue
        if character == "(":
            position, is_atomic = _opened(pattern, position)
            groups.append([_Branch()])
            atomic.append(is_atomic)
            continue
        body: list[_Branch] = []
        if character == ")" and len(groups) > 1:
            body = [] if atomic.pop() else groups.pop()
            position += 1
            if not body:
                groups.pop()
        else:
            position = _atom_end(pattern, position)
        position, least, bounded, possessive = _quantifier(pattern, position)
        if not bounded and not possessive and any(b.unbounded and not b.anchor for b in body):
            return True
        branch = groups[-1][-1]
        inner = any(b.unbounded for b in body)
        branch.unbounded |= not possessive and (not bounded or inner)
        # An atom that matches exactly once; a group does so if each of its alternatives has one.
        once = bounded and least > 0 and not inner
        branch.anchor |= once or (bounded and least > 0 and all(b.anchor for b in body))
    return False


def _opened(pattern: str, position: int) -> tuple[int, bool]:
    """Return where a group's body starts, and whether it is atomic or a look-around."""
    if not pattern.startswith("(?", position):
        return position + 1, False
    for opening in ("(?>", "(?=", "(?!", "(?<=", "(?<!"):
        if pattern.startswith(opening, position):
            return position + len(opening), True
    end = position + 2
    while end < len(pattern) and pattern[end] not in ":>)":
        end += 1
    # `(?i)` switches an option and has no body: its closing bracket is left to be read.
    return (end if end < len(pattern) and pattern[end] == ")" else end + 1), False


def _atom_end(pattern: str, position: int) -> int:
    """Return the place after the character, escape or class that stands at `position`."""
    if pattern[position] == "\\":
        named = pattern[position + 1 : position + 3] in ("p{", "P{", "x{")
        end = pattern.find("}", position) if named else position + 1
        return (end if end >= 0 else position + 1) + 1
    if pattern[position] != "[":
        return position + 1
    depth, position = 1, position + 1
    position += pattern[position : position + 1] == "^"
    position += pattern[position : position + 1] == "]"
    while position < len(pattern) and depth:
        step = 2 if pattern[position] == "\\" else 1
        depth += {"[": 1, "]": -1}.get(pattern[position], 0)
        position += step
    return position


def _quantifier(pattern: str, position: int) -> tuple[int, int, bool, bool]:
    """Return the place after a quantifier, its least count, if it is bounded, if possessive."""
    character = pattern[position : position + 1]
    if character not in ("*", "+", "?", "{") or not character:
        return position, 1, True, False
    least, bounded, end = {"*": 0, "+": 1, "?": 0}.get(character, 1), character == "?", position + 1
    if character == "{":
        close = pattern.find("}", position)
        low, comma, high = pattern[position + 1 : max(close, position)].partition(",")
        if close < 0 or not (low + high).isdigit():
            return position, 1, True, False  # a plain brace
        least, bounded, end = int(low or 0), not (comma and not high), close + 1
    following = pattern[end : end + 1]
    # Oniguruma's Ruby syntax reads `{n,m}+` as a repetition of a repetition, not as possessive.
    possessive = following == "+" and character != "{"
    return end + (possessive or following == "?"), least, bounded, possessive
