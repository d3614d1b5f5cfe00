"""nanoGPT's config files, read as what they are: names given literal values. Nothing in them is ever executed.

>>> read_python("batch_size = 12\\ngradient_accumulation_steps = 5 * 8  # 40 in all", "a.py")
{'batch_size': 12, 'gradient_accumulation_steps': 40}
"""

import ast
import math
import operator
import threading
import warnings
from collections.abc import Callable, Collection
from typing import Any

from onecard.errors import UserError

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type, Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}
# ast.parse counts its depth in one place for all threads in Python 3.11 and 3.12 (python/cpython#106905), and
# warnings.catch_warnings swaps filters that all threads share: one thread at a time.
_ONE_PARSE_AT_A_TIME = threading.Lock()
_LARGEST = 10**18  # numbers beyond this mean nothing here, and towers of ** would never end


class _NotLiteralError(Exception):
    def __init__(self, node: ast.AST, why: str):
        self.line = getattr(node, "lineno", 1)
        self.why = why


def read_python(source: str, name: str, keys: Collection[str] = ()) -> dict[str, Any]:
    """The assignments of a nanoGPT config as a mapping; anything but literals and arithmetic names its line.

    A name outside `keys` that a later line uses is the author's own helper, and is left out.
    """
    try:
        tree: ast.Module = _parse(source, "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line, why = getattr(error, "lineno", None) or 1, getattr(error, "msg", None) or "too deep"
        why = "a number that is too long" if "digits" in why else why
        raise UserError(
            f"{name}, line {line}: not readable as Python ({why})",
            hint="a config holds lines like n_layer = 12",
        ) from None
    names: dict[str, Any] = {}
    for statement in tree.body:
        try:
            _take(statement, names)
        except _NotLiteralError as error:
            raise UserError(
                f"{name}, line {error.line}: {error.why}",
                hint="a config holds only values and arithmetic; it is read, never run",
            ) from None
        except RecursionError:
            raise UserError(
                f"{name}, line {statement.lineno}: nested too deep", hint="write the value out"
            ) from None
    used = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    return {key: value for key, value in names.items() if key in keys or key not in used}


def evaluate(source: str) -> Any:
    """One literal or arithmetic expression; raises ValueError for anything else."""
    try:
        tree: ast.Expression = _parse(source.strip(), "eval")
        return _value(tree.body, {})
    except (SyntaxError, ValueError, RecursionError, MemoryError, _NotLiteralError):
        raise ValueError(source) from None


def _parse(source: str, mode: str) -> Any:
    """ast.parse without its warnings: a path like "C:\\data" is a config's business, not the terminal's."""
    with _ONE_PARSE_AT_A_TIME, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source, "<config>", mode)


def _take(statement: ast.stmt, names: dict[str, Any]) -> None:
    match statement:
        case ast.Assign(targets=[ast.Name(id=target)], value=value):
            names[target] = _value(value, names)
        case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value):
            names[target] = _value(value, names)
        case ast.AugAssign(target=ast.Name(id=target), op=op, value=value) if target in names:
            names[target] = _combine(statement, op, names[target], _value(value, names))
        case ast.Expr(value=ast.Constant(value=str())) | ast.Pass():
            pass  # a docstring
        case ast.Import() | ast.ImportFrom():
            raise _NotLiteralError(statement, "a config cannot import")
        case ast.Expr(value=ast.Call()):
            raise _NotLiteralError(statement, "a config cannot call a function")
        case _:
            raise _NotLiteralError(
                statement, f"a config cannot hold this ({type(statement).__name__})"
            )


def _value(node: ast.expr, names: dict[str, Any]) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            if (
                isinstance(value, int | float)
                and not isinstance(value, bool)
                and abs(value) > _LARGEST
            ):
                raise _NotLiteralError(node, "a number beyond 10^18")
            return value
        case ast.Name(id=name):
            if name not in names:
                raise _NotLiteralError(node, f"{name!r} has no value yet")
            return names[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            value = _value(operand, names)
            if isinstance(value, str | None) and not isinstance(op, ast.Not):
                raise _NotLiteralError(node, "a minus before text")
            return _UNARY[type(op)](value)
        case ast.BinOp(left=left, op=op, right=right):
            return _combine(node, op, _value(left, names), _value(right, names))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _value(body if _value(test, names) else orelse, names)
        case ast.Call():
            raise _NotLiteralError(node, "a config cannot call a function")
        case _:
            raise _NotLiteralError(node, f"a config cannot hold this ({type(node).__name__})")


def _combine(node: ast.AST, op: ast.operator, left: Any, right: Any) -> Any:
    if isinstance(left, str) and isinstance(right, str) and isinstance(op, ast.Add):
        if len(left) + len(right) > 10_000:
            raise _NotLiteralError(node, "text that is too long")
        return left + right
    if (
        not isinstance(left, int | float)
        or not isinstance(right, int | float)
        or type(op) not in _BINARY
    ):
        raise _NotLiteralError(node, "arithmetic on something that is not a number")
    if isinstance(op, ast.Pow) and (abs(right) > 64 or abs(left) > 1e6):
        raise _NotLiteralError(node, "a power beyond what a config needs")
    try:
        value = _BINARY[type(op)](left, right)
    except (ArithmeticError, ValueError):
        raise _NotLiteralError(node, "arithmetic that has no result") from None
    if isinstance(value, complex):
        raise _NotLiteralError(node, "arithmetic that has no result")
    if not math.isfinite(value) or abs(value) > _LARGEST:
        raise _NotLiteralError(node, "a number beyond 10^18")
    return value
