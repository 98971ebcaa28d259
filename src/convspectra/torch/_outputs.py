"""What reads the output of a layer: which BatchNorms, and anything else?"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

# The BatchNorms, each with its name, and None for everything else, in order.
Readers = dict[tuple[str, Any] | None, None]


class Outputs:
    """The outputs of layers, while they are there, and whom to tell of a reader."""

    def __init__(self) -> None:
        self._readers = WeakTensorKeyDictionary()  # with the version of the output

    def __len__(self) -> int:
        return len(self._readers)

    def add(self, output: torch.Tensor, readers: Readers) -> None:
        """Note from now on who reads this output, in `readers`."""
        self._readers[output] = readers, _version(output)

    def note(self, values: Any, reader: tuple[str, Any] | None) -> None:
        """Note who reads the outputs among some values."""
        for _, readers in self._among(values):
            readers[reader] = None

    def call(self, values: Any) -> Callable[[Any], None] | None:
        """Begin a call of a function; what is returned is to be told its result."""
        found = self._among(values)
        return partial(self._end, found) if found else None

    def _end(self, given: list[tuple[torch.Tensor, Readers]], result: Any) -> None:
        """A call reads an output if it changes it, or makes another tensor of it."""
        results = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        for x, readers in given:
            if x.is_inference() and any(x is each for each in results):
                self._readers.pop(x, None)  # it may be changed: it has no version
            if not self._among(x) or any(x is not each for each in results):
                readers[None] = None

    def _among(self, values: Any) -> list[tuple[torch.Tensor, Readers]]:
        """The outputs among some values that nothing has changed since."""
        found = []
        for x in tree_leaves(values):
            if isinstance(x, torch.Tensor) and x in self._readers:
                readers, version = self._readers[x]
                if version == _version(x):
                    found.append((x, readers))
        return found


def _version(x: torch.Tensor) -> int:
    """How often it was changed in place; tensors of inference mode do not count."""
    return -1 if x.is_inference() else x._version
