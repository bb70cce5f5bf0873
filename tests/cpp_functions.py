"""The functions of a C++ file, and how long they are."""

import re
from pathlib import Path

_LITERALS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
_DIRECTIVES = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
_SCOPE = re.compile(r"\b(?:namespace|struct|class|enum|union)\b")
_NAME = re.compile(r"(operator\s*(?:\(\)|[^\s\w(]+)|[~\w]+)\s*\(")
_NO_NAMES = {"alignas", "decltype", "explicit", "noexcept", "requires"}


def _blank(match: re.Match[str]) -> str:
    """As many lines, without anything on them."""
    return re.sub(r"[^\n]", " ", match[0])


def _group(text: str, start: int, pair: str) -> int:
    """Where the bracketed group that opens at `start` ends."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == pair[0]) - (text[i] == pair[1])
        if depth == 0:
            return i + 1
    return len(text)


def _without(text: str, opening: str, pair: str) -> str:
    """The text with each `opening` and the bracketed group behind it blanked."""
    while found := re.search(opening, text):
        end = _group(text, text.index(pair[0], found.start()), pair)
        text = text[: found.start()] + re.sub(r"[^\n]", " ", text[found.start() : end]) + text[end:]
    return text


def _signature(text: str) -> str:
    """What stands before a brace, without template parameters, attributes and access specifiers."""
    text = _without(text, r"\btemplate\s*<", "<>")
    text = _without(text, r"\b__attribute__\s*\(", "()")
    return re.sub(r"\b(?:public|private|protected)\s*:", lambda m: " " * len(m[0]), text)


def _name(signature: str) -> str | None:
    """The name of the function that the signature declares, None if it declares none."""
    for found in _NAME.finditer(signature):
        if found[1] not in _NO_NAMES:
            initialises = "=" in signature[: found.start()]
            return None if initialises else re.sub(r"\s", "", found[1])
    return None


def functions(path: Path) -> list[tuple[str, int, int]]:
    """Name, first line and number of lines of each function that the file defines.

    A function begins at its signature, behind the template parameters, and ends at its closing
    brace. Lambdas belong to the function that they stand in.
    """
    text = _DIRECTIVES.sub(_blank, _LITERALS.sub(_blank, path.read_text()))
    found: list[tuple[str, int, int]] = []
    scopes: list[bool] = []  # of each open brace, whether declarations stand in it
    begun: tuple[str, int, int] | None = None  # name, first line, depth
    start = parentheses = 0  # of the declaration; how many are open in it
    for i, character in enumerate(text):
        if character in "()":
            parentheses += 1 if character == "(" else -1
        if character not in "{};" or (parentheses and begun is None):
            continue
        if character == "{":
            declares = False
            if begun is None:
                signature = _signature(text[start:i])
                declares = bool(_SCOPE.search(signature)) and "(" not in signature
                if not declares and (name := _name(signature)):
                    first = start + len(signature) - len(signature.lstrip())
                    begun = name, text.count("\n", 0, first) + 1, len(scopes)
            scopes.append(declares)
        elif character == "}":
            scopes.pop()
            if begun is not None and len(scopes) == begun[2]:
                found.append((begun[0], begun[1], text.count("\n", 0, i) + 2 - begun[1]))
                begun = None
                parentheses = 0
        if begun is None:
            start = i + 1
    return found
