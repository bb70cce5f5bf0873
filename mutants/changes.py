"""Single-point changes of a Python source: what may be changed, and the source with the change."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

COMPARISONS: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">="),
    ast.LtE: ("<", ">"),
    ast.Gt: (">=", "<="),
    ast.GtE: (">", "<"),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
}
OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Pow: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
}
DROPPED_METHODS = frozenset(
    {"contiguous", "detach", "clone", "conj", "resolve_conj", "resolve_neg", "coalesce"}
)
_SKIPPED = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)


class Change(NamedTuple):
    """One change of one file.

    Attributes:
        file: Path below the root of the tree.
        function: The dotted name of the function or class around it, "" for the module.
        was: The statement before the change, on one line; of a compound statement, its first line.
        becomes: The statement after the change.
        lines: First and last line of that statement; of a function, to the first line of its body,
            because the tests that call it execute this one alone.
        start: Offset in the source, in bytes, where the replaced text begins.
        stop: Where it ends.
        text: What stands there instead.
    """

    file: str
    function: str
    was: str
    becomes: str
    lines: tuple[int, int]
    start: int
    stop: int
    text: str

    def applied(self, source: bytes) -> bytes:
        """The source with the change."""
        return source[: self.start] + self.text.encode() + source[self.stop :]


def changes(file: str, source: bytes) -> list[Change]:
    """Every change of a file."""
    return list(_Finder(file, source).all())


class _Finder:
    def __init__(self, file: str, source: bytes) -> None:
        self.file = file
        self.source = source
        self.tree = ast.parse(source)
        self.line_starts = [0]
        for line in source.splitlines(keepends=True):
            self.line_starts.append(self.line_starts[-1] + len(line))

    def all(self) -> Iterator[Change]:
        yield from self._body(self.tree, "")

    def _body(self, node: ast.AST, function: str) -> Iterator[Change]:
        """The changes in the statements below `node`."""
        for child in ast.iter_child_nodes(node):
            if _is_overload(child):
                continue
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = f"{function}.{child.name}".lstrip(".")
                if isinstance(child, ast.FunctionDef):
                    yield from self._expressions(child.args, child, function=inner)
                yield from self._body(child, inner)
            elif isinstance(child, ast.stmt):
                yield from self._statement(child, function)
                yield from self._body(child, function)
            elif isinstance(child, ast.ExceptHandler | ast.match_case | ast.withitem):
                yield from self._body(child, function)

    def _statement(self, node: ast.stmt, function: str) -> Iterator[Change]:
        if _droppable(node):
            yield self._change(node, function, self._span(node), "pass")
        if isinstance(node, ast.If | ast.While) and "TYPE_CHECKING" not in ast.dump(node.test):
            test = ast.unparse(node.test)
            yield self._change(node, function, self._span(node.test), f"not ({test})")
            if isinstance(node, ast.If):
                yield self._change(node, function, self._span(node.test), "False")
        if isinstance(node, _SKIPPED) or _is_text(node):
            return
        for field in ast.iter_child_nodes(node):
            if isinstance(field, ast.expr | ast.withitem):
                if isinstance(node, ast.AnnAssign) and field is node.annotation:
                    continue
                yield from self._expressions(field, node, function=function)

    def _expressions(self, top: ast.AST, node: ast.stmt, *, function: str) -> Iterator[Change]:
        """The changes within an expression of the statement `node`."""
        todo = [top]
        while todo:
            found = todo.pop()
            if isinstance(found, (*_SKIPPED, ast.arg)):
                continue
            if isinstance(found, ast.expr):
                for (start, stop), text in self._replacements(found):
                    yield self._change(node, function, (start, stop), text)
            todo.extend(c for c in ast.iter_child_nodes(found) if not _is_strict(c))

    def _replacements(self, node: ast.expr) -> Iterator[tuple[tuple[int, int], str]]:
        """The places within an expression that may be changed, each with its new text."""
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for i, op in enumerate(node.ops):
                for text in COMPARISONS[type(op)]:
                    yield self._between(operands[i], operands[i + 1]), text
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS and not _is_string(node):
            yield self._between(node.left, node.right), OPERATORS[type(node.op)]
        elif isinstance(node, ast.BoolOp):
            text = "or" if isinstance(node.op, ast.And) else "and"
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield self._between(left, right), text
        elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.UAdd):
            yield self._span(node), f"({ast.unparse(node.operand)})"
        elif isinstance(node, ast.IfExp):
            yield self._span(node.test), f"not ({ast.unparse(node.test)})"
        elif isinstance(node, ast.Constant):
            yield from ((self._span(node), text) for text in _other_constants(node.value))
        elif isinstance(node, ast.Call):
            yield from self._calls(node)

    def _calls(self, node: ast.Call) -> Iterator[tuple[tuple[int, int], str]]:
        if isinstance(node.func, ast.Attribute) and node.func.attr in DROPPED_METHODS:
            yield self._span(node), ast.unparse(node.func.value)
        for left, right in zip(node.args, node.args[1:], strict=False):
            kinds = type(left), type(right)
            names = (ast.Name, ast.Attribute, ast.Subscript)
            if all(issubclass(k, names) for k in kinds) and ast.dump(left) != ast.dump(right):
                text = f"{ast.unparse(right)}, {ast.unparse(left)}"
                yield (self._span(left)[0], self._span(right)[1]), text

    def _change(self, node: ast.stmt, function: str, span: tuple[int, int], text: str) -> Change:
        start = self._span(node)[0]
        executed = 0
        if isinstance(node, ast.FunctionDef):
            first, last = node.lineno, max(node.lineno, node.body[0].lineno - 1)
            executed = next((s.lineno for s in node.body if not _is_text(s)), last)
        elif hasattr(node, "body"):
            first, last = node.lineno, node.lineno
            for part in ast.iter_child_nodes(node):
                if isinstance(part, ast.expr | ast.withitem):
                    inner = part.context_expr if isinstance(part, ast.withitem) else part
                    last = max(last, inner.end_lineno or last)
        else:
            first, last = node.lineno, node.end_lineno or node.lineno
        stop = max(self.line_starts[last], span[1])
        was = self.source[start:stop].decode()
        becomes = (
            self.source[start : span[0]] + text.encode() + self.source[span[1] : stop]
        ).decode()
        lines = first, max(last, executed)
        return Change(self.file, function, _one_line(was), _one_line(becomes), lines, *span, text)

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self.line_starts[node.lineno - 1] + node.col_offset,
            self.line_starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def _between(self, left: ast.expr, right: ast.expr) -> tuple[int, int]:
        """Where the operator between two operands stands, without their brackets."""
        start, stop = self._span(left)[1], self._span(right)[0]
        gap = self.source[start:stop]
        before = len(gap) - len(gap.lstrip(b") \n\t"))
        after = len(gap) - len(gap.rstrip(b"( \n\t"))
        return start + before, stop - after


def _droppable(node: ast.stmt) -> bool:
    """Whether a statement can be left out, and the names that follow still be known."""
    if isinstance(node, ast.Raise | ast.AugAssign | ast.Delete | ast.Continue | ast.Break):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    if isinstance(node, ast.Assign):
        written = {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        read = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
        attribute = all(isinstance(t, ast.Attribute | ast.Subscript) for t in node.targets)
        return attribute or (bool(written) and written <= read)
    return False


def _other_constants(value: object) -> list[str]:
    if isinstance(value, bool):
        return [str(not value)]
    if isinstance(value, int):
        return [str(value + 1)] if value < 1 else [str(value + 1), str(value - 1)]
    return [str(value + 1)] if isinstance(value, float) else []


def _is_overload(node: ast.AST) -> bool:
    """Whether it is a signature for type checkers, which nobody calls."""
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return any(isinstance(d, ast.Name) and d.id == "overload" for d in decorators)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_strict(node: ast.AST) -> bool:
    """Whether it is the `strict` of a zip, which only a defect of the code can violate."""
    return isinstance(node, ast.keyword) and node.arg == "strict"


def _is_string(node: ast.BinOp) -> bool:
    """Whether one operand is known to be a string."""
    parts = (node.left, node.right)
    return any(
        isinstance(p, ast.JoinedStr) or (isinstance(p, ast.Constant) and isinstance(p.value, str))
        for p in parts
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())
