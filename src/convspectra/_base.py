"""Is this argument valid, is this extra installed, is this file written whole?

What every room stands on.
"""

import functools
import importlib
import math
import operator
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, Protocol, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


def size(name: str, value: Any, *, least: int) -> int:
    """`value` as a whole number that is not below `least`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"`{name}` must be whole numbers, got {value!r}.")
    found = operator.index(value)
    if found < least:
        raise ValueError(f"`{name}` must be at least {least}, got {value!r}.")
    if found >= 2**31:
        raise ValueError(f"`{name}` must be below 2**31, got {value!r}.")
    return found


def positive(name: str, value: float) -> float:
    """`value` as a positive, finite number."""
    kind = isinstance(value, Real) and not isinstance(value, bool)
    if not (kind and 0 < value < math.inf):
        raise ValueError(f"`{name}` must be a positive, finite number, got {value!r}.")
    return float(value)


def fraction(name: str, value: float) -> float:
    """`value` as a number between 0 and 1."""
    if not (isinstance(value, Real) and 0 < value < 1):
        raise ValueError(f"`{name}` must be between 0 and 1, got {value!r}.")
    return float(value)


def require(module: str, *, extra: str) -> ModuleType:
    """Import `module`, or say which extra of this package brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise  # it is there, but something inside it is not
        raise ModuleNotFoundError(
            f"`{module}` must be installed for this, and is not. Run "
            f"`pip install 'convspectra[{extra}]'`.",
            name=error.name,
        ) from None


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a path beside `target`: moved there in the end, removed on any failure."""
    target = target.resolve()
    partial = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        yield partial
        partial.replace(target)
    except OSError as error:
        raise OSError(
            f"{str(target)!r} must be writable: {error.strerror or error}. "
            "Nothing was written."
        ) from error
    finally:
        partial.unlink(missing_ok=True)


class Cached(Protocol[P, R]):
    """A function that remembers its results, with the signature that it had."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def cache_clear(self) -> None: ...


def cached(maxsize: int | None) -> Callable[[Callable[P, R]], Cached[P, R]]:
    """As `functools.lru_cache`, which takes anything hashable in the checker's eyes.

    For arguments that are compared by value, or that are themselves cached, so that
    equal ones are the identical object. An array, or a record that is made anew for
    each call, would never be found again, and kept alive.
    """
    return cast(Any, functools.lru_cache(maxsize=maxsize))
