"""Where kernels are in a tree of parameters: a dict, or a state of nnx."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

Path = tuple[str, ...]
PARAMETERS = "params"  # linen's name for the collection of what is trained


def leaves_by_path(tree: Any) -> dict[Path, Any]:
    """The arrays of a tree by their paths."""
    return {_path(keys): leaf for keys, leaf in _flat(tree)}


def without_collection(path: Path) -> Path:
    """A path in the parameters, from one in all variables of a linen model."""
    return path[1:] if path[:1] == (PARAMETERS,) else path


def leaves_at(tree: Any, paths: Collection[Path]) -> list[Any]:
    """The arrays of a tree at some paths, in their order."""
    leaves = leaves_by_path(tree)
    return [leaves[place] for place in _places(leaves, paths)]


def map_at(tree: Any, functions: Mapping[Path, Callable[[Any], Any]]) -> Any:
    """The tree with functions applied to the arrays at some paths."""
    flat, structure = jax.tree_util.tree_flatten_with_path(tree)
    paths = [_path(keys) for keys, _ in flat]
    by_place = dict(zip(_places(paths, functions), functions.values()))
    leaves = [
        by_place[path](leaf) if path in by_place else leaf
        for path, (_, leaf) in zip(paths, flat)
    ]
    return jax.tree_util.tree_unflatten(structure, leaves)


def _places(paths: Collection[Path], wanted: Collection[Path]) -> list[Path]:
    """Where the wanted paths are among those of a tree.

    A tree of all variables of a linen model has them in its collection "params".
    """
    known, places = set(paths), []
    for path in wanted:
        place = path if path in known else (PARAMETERS, *path)
        if place not in known:
            raise ValueError(
                "The parameters must be those of the model whose layers were listed, "
                f"but they have no {'/'.join(path)!r}, only "
                f"{', '.join('/'.join(path) for path in paths)}."
            )
        places.append(place)
    return places


def _flat(tree: Any) -> list[tuple[Any, Any]]:
    return jax.tree_util.tree_flatten_with_path(tree)[0]


def _path(keys: tuple[Any, ...]) -> Path:
    """The names on the way to a leaf.

    The attribute in which the variables of nnx hold their arrays is none of them.
    """
    names = [_name(key) for key in keys if not isinstance(key, GetAttrKey)]
    while names and not names[-1]:
        names.pop()
    return tuple(names)


def _name(key: Any) -> str:
    if isinstance(key, (DictKey, FlattenedIndexKey)):
        return "" if isinstance(key, FlattenedIndexKey) else str(key.key)
    return str(key.idx) if isinstance(key, SequenceKey) else str(key)
