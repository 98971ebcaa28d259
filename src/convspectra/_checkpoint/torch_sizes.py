"""Sizes in the graph of an exported program: numbers, or expressions of free ones."""

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MOST_EXPRESSION = 10_000  # characters

Known = Mapping[str, int]  # the values of symbols

_FUNCTIONS: dict[str, Callable[..., int]] = {
    "Add": lambda *terms: sum(terms),
    "Mul": lambda *factors: math.prod(factors),
    "FloorDiv": lambda one, other: one // other,
    "CleanDiv": lambda one, other: one // other,
    "Mod": lambda one, other: one % other,
    "PythonMod": lambda one, other: one % other,
    "Max": max,
    "Min": min,
}


def sizes_of(meta: Any, known: Known) -> list[int] | None:
    """The sizes of a tensor by its entry in the graph, 0 for those that are open."""
    found = meta.get("sizes") if isinstance(meta, dict) else None
    if not isinstance(found, list) or len(found) > 10:
        return None
    return [max(_value(size, known) or 0, 0) for size in found]


def symbols_for(meta: Any, sizes: Sequence[int]) -> dict[str, int]:
    """The values of the symbols with which a tensor has these sizes.

    Raises ValueError where it cannot have them.
    """
    known: dict[str, int] = {}
    stated = meta.get("sizes") if isinstance(meta, dict) else None
    if not isinstance(stated, list) or len(stated) != len(sizes):
        raise ValueError("it has another number of axes")
    for size, wanted in zip(stated, sizes):
        for symbol in sorted(_symbols(size) - known.keys()):
            # A multiple of one number, and something added, as torch.export has them.
            zero, one = (_value(size, known | {symbol: n}) for n in (0, 1))
            if zero is None or one is None or one == zero:
                continue
            value, rest = divmod(wanted - zero, one - zero)
            if rest == 0:
                known[symbol] = value
    for axis, (size, wanted) in enumerate(zip(stated, sizes)):
        if _value(size, known) != wanted:
            raise ValueError(f"axis {axis} cannot have size {wanted}")
    return known


def example_of(meta: Any) -> list[int]:
    """The sizes of the example that a program was exported with, where it has them."""
    found = []
    for size in meta["sizes"]:
        hint = (size.get("as_expr") or {}).get("hint") or {}
        found.append(size.get("as_int") or hint.get("as_int"))
    return found if all(type(n) is int for n in found) else []


def _expression(size: Any) -> ast.expr | None:
    stated = size.get("as_expr") if isinstance(size, dict) else None
    text = stated.get("expr_str") if isinstance(stated, dict) else None
    if not isinstance(text, str) or len(text) > MOST_EXPRESSION:
        return None
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _value(size: Any, known: Known) -> int | None:
    if isinstance(size, dict) and type(size.get("as_int")) is int:
        return size["as_int"]
    expression = _expression(size)
    try:
        return None if expression is None else _evaluated(expression, known)
    except (LookupError, TypeError, ZeroDivisionError):
        return None


def _evaluated(node: ast.expr, known: Known) -> int:
    """The value of an expression as sympy writes it; nothing is called by its name."""
    match node:
        case ast.Call(func=ast.Name(id="Integer"), args=[ast.Constant(value=int(n))]):
            return n
        case ast.Call(
            func=ast.Name(id="Integer"),
            args=[ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(n)))],
        ):
            return -n
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(name))]):
            return known[name]
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name](*(_evaluated(arg, known) for arg in args))
    raise TypeError("it is something else")


def _symbols(size: Any) -> set[str]:
    expression = _expression(size)
    return {
        node.args[0].value
        for node in (ast.walk(expression) if expression else ())
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Symbol"
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    }
