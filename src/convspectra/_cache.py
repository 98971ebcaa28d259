"""Caches whose arguments the type checker sees."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class Cached(Protocol[P, R]):
    """A function that remembers its results, with the signature that it had."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def cache_clear(self) -> None: ...

    def cache_info(self) -> Any: ...


def cached(maxsize: int | None) -> Callable[[Callable[P, R]], Cached[P, R]]:
    """As `functools.lru_cache`, which takes anything hashable in the checker's eyes.

    For arguments that are compared by value, or of which there is one object for each
    question: an array, or a record that is made anew for each call, would never be
    found again, and kept alive.
    """
    return cast(Any, functools.lru_cache(maxsize=maxsize))
