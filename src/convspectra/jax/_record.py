"""Which kernels a Flax model uses, and which input sizes they see."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
from flax import linen, nnx

from .._layer.geometry import Geometry
from ._modules import computes_kernels, geometry_of, is_batch_norm, role_of
from ._paths import Path
from ._readers import not_counted, numbered, numbers_read


@dataclass(frozen=True, slots=True)
class Call:
    """A model, and what it is called with."""

    model: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BatchNorm:
    """A BatchNorm of a model."""

    path: Path  # of the module
    epsilon: float


@dataclass(frozen=True, slots=True)
class Use:
    """A kernel of a model, at one geometry."""

    path: Path  # of the kernel in the tree of parameters
    role: str  # which says how the kernel lies in memory
    geometry: Geometry
    batch_norm: BatchNorm | None = None  # what the output goes into

    @property
    def name(self) -> str:
        return "/".join(self.path)


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """A use, and what reads its output: BatchNorms to fold, None for all else."""

    use: Use
    readers: dict[BatchNorm | None, None] = field(default_factory=dict)


class Recorder:
    """The uses of a model's kernels, and the reasons why other kernels have none."""

    def __init__(self, kernels: Mapping[Path, Any], *, batch_norms: bool) -> None:
        self.skipped: dict[str, str] = {}
        self._batch_norms = batch_norms
        self._kernels = kernels
        self._seen: dict[int, _Seen] = {}  # by the numbers of outputs
        # What is seen by the outputs that it makes, which are kept: their ids must not
        # be given to others.
        self._makers: dict[int, tuple[Any, _Seen]] = {}
        self._wrappers: list[str] = []  # that are being called

    @property
    def uses(self) -> tuple[Use, ...]:
        """In the order of execution; what is used at one size several times, once."""
        each = (
            replace(seen.use, batch_norm=norm)
            for seen in self._seen.values()
            for norm in seen.readers or (None,)
        )
        return tuple(dict.fromkeys(each))

    def call(
        self,
        module: Any,
        path: Path,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call a module, and note what it does."""
        # The input may be passed by its name.
        x: Any = args[0] if args else next(iter(kwargs.values()), None)
        if self._is_folded(module, x):
            norm, apart = BatchNorm(path, module.epsilon), not_counted(x)
            self._makers[id(x)][1].readers[norm] = None
            args = tuple(apart if each is x else each for each in args)
            kwargs = {k: apart if each is x else each for k, each in kwargs.items()}
        if computes_kernels(module):
            self._wrappers.append(type(module).__name__)
        output = call(*args, **kwargs)
        if computes_kernels(module):
            self._wrappers.pop()
        use = self._use(module, (*path, "kernel"), x) if role_of(module) else None
        if use is not None:
            output, number = numbered(output)
            self._seen[number] = seen = _Seen(use)
            self._makers[id(output)] = output, seen
        return output

    def note_readers(self, jaxpr: Any) -> None:
        """Note which outputs more than the BatchNorms read, in the whole trace."""
        for number in numbers_read(jaxpr) & self._seen.keys():
            self._seen[number].readers[None] = None

    def _is_folded(self, module: Any, x: Any) -> bool:
        known = self._batch_norms and is_batch_norm(module) and id(x) in self._makers
        return known and module.axis in (-1, x.ndim - 1)

    def _use(self, module: Any, path: Path, x: Any) -> Use | None:
        kernel, role = self._kernels.get(path), role_of(module)
        try:
            if kernel is None:
                raise ValueError("its kernel is not in `params`")
            if self._wrappers:
                raise ValueError(f"a {self._wrappers[-1]} computes the kernel in use")
            _check_dtype(kernel.dtype)
            return Use(path, role, geometry_of(module, role, x.shape, kernel.shape))
        except (ValueError, TypeError) as error:
            self.skipped["/".join(path)] = f"{error}".rstrip(".")
            return None


def follow_linen(call: Call, recorder: Recorder) -> None:
    """Note the calls of modules while a linen model is initialized, by shapes only."""

    def intercept(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        if context.method_name != "__call__":
            return call(*args, **kwargs)
        module = context.module
        return recorder.call(module, module.path, call, args, kwargs)

    def initialize(key: Any, *args: Any, **kwargs: Any) -> Any:
        rngs = {"params": key, "dropout": key}
        return call.model.init_with_output(rngs, *args, **kwargs)

    with linen.intercept_methods(intercept):
        _trace(initialize, jax.random.key(0), call, recorder)


def follow_nnx(call: Call, recorder: Recorder) -> None:
    """Note the calls of modules of a copy of an nnx model, by shapes only."""
    graph, state = nnx.split(call.model)

    def call_copy(state: Any, *args: Any, **kwargs: Any) -> Any:
        copy = nnx.merge(graph, state)
        for path, module in list(nnx.iter_modules(copy)):
            if role_of(module) or is_batch_norm(module) or computes_kernels(module):
                _watch(module, tuple(map(str, path)), recorder)
        return copy(*args, **kwargs)

    _trace(call_copy, state, call, recorder)


def _watch(module: Any, path: Path, recorder: Recorder) -> None:
    """Make a module note its calls, by a class of its own."""
    kind = type(module)

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = partial(kind.__call__, self)
        return recorder.call(self, path, call, args, kwargs)

    module.__class__ = type(
        kind.__name__, (kind,), {"__call__": watched, "__module__": kind.__module__}
    )


def _trace(
    function: Callable[..., Any], state: Any, call: Call, recorder: Recorder
) -> None:
    """Trace a function of the state and all arguments, by the shapes of arrays.

    What is no array is a constant.
    """
    given, structure = jax.tree.flatten((call.args, call.kwargs))
    arrays = {i: x for i, x in enumerate(given) if hasattr(x, "dtype")}

    def traced(state: Any, arrays: dict[int, Any]) -> list[jax.Array]:
        each = [arrays.get(i, x) for i, x in enumerate(given)]
        args, kwargs = jax.tree.unflatten(structure, each)
        found = function(state, *args, **kwargs)
        return [x for x in jax.tree.leaves(found) if isinstance(x, jax.Array)]

    recorder.note_readers(jax.make_jaxpr(traced)(state, arrays).jaxpr)


def _check_dtype(dtype: Any) -> None:
    """Refuse what a quantized layer has for a kernel."""
    if not jax.numpy.issubdtype(dtype, jax.numpy.inexact):
        raise TypeError(f"its numbers are {dtype}, which stand for others")
