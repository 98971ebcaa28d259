"""Where kernels are in a tree of parameters: a dict, or a state of nnx."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

Path = tuple[str, ...]


def leaves_by_path(tree: Any) -> dict[Path, Any]:
    """The arrays of a tree by their paths."""
    return {_path(keys): leaf for keys, leaf in _flat(tree)}


def leaves_at(tree: Any, paths: Collection[Path]) -> list[Any]:
    """The arrays of a tree at some paths, in their order."""
    leaves = leaves_by_path(tree)
    _check_has(leaves, paths)
    return [leaves[path] for path in paths]


def map_at(tree: Any, functions: Mapping[Path, Callable[[Any], Any]]) -> Any:
    """The tree with functions applied to the arrays at some paths."""
    flat, structure = jax.tree_util.tree_flatten_with_path(tree)
    paths = [_path(keys) for keys, _ in flat]
    _check_has(paths, functions)
    leaves = [
        functions[path](leaf) if path in functions else leaf
        for path, (_, leaf) in zip(paths, flat)
    ]
    return jax.tree_util.tree_unflatten(structure, leaves)


def _check_has(paths: Collection[Path], wanted: Collection[Path]) -> None:
    """Refuse a tree that lacks some of the wanted paths."""
    missing = [path for path in wanted if path not in paths]
    if missing:
        raise ValueError(
            "The parameters must be those of the model whose layers were listed, but "
            f"they have no {'/'.join(missing[0])!r}, only "
            f"{', '.join('/'.join(path) for path in paths)}."
        )


def _flat(tree: Any) -> list[tuple[Any, Any]]:
    return jax.tree_util.tree_flatten_with_path(tree)[0]


def _path(keys: tuple[Any, ...]) -> Path:
    """The names on the way to a leaf, without those that only wrap it.

    A tree of variables begins with the collection "params", and the variables of nnx
    hold their arrays in an attribute.
    """
    names = [_name(key) for key in keys if not isinstance(key, GetAttrKey)]
    while names and not names[-1]:
        names.pop()
    return tuple(names[1:] if names[:1] == ["params"] else names)


def _name(key: Any) -> str:
    if isinstance(key, (DictKey, FlattenedIndexKey)):
        return "" if isinstance(key, FlattenedIndexKey) else str(key.key)
    return str(key.idx) if isinstance(key, SequenceKey) else str(key)
