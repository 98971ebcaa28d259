"""One pass over the kernels of a model that bounds the norm of each of them."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from .._arrays.host import one_thread, to_double_device
from .._arrays.threads import spread
from .._bound.enforce import Enforced, enforce, norm_lipschitz
from .._bound.folded import Folding, enforce_folded, folded_norm
from .._bound.scale import SMALLEST_NORMAL
from .._layer.geometry import Geometry
from .._training import Change, Pass, progress_of
from ._norm_op import text_of
from ._replicas import Replicas, write
from ._targets import Target, Targets

# Covers the rounding of a Frobenius norm, and of two products.
ROUNDING = 1.001
# A kernel that has moved is not measured again while its norm has certainly grown by
# at most this factor; what a pass then reports is too high by no more.
UNMOVED_FACTOR = 1.05


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A kernel that satisfied its bound, at these geometries, which are text.

    `upper` is its certified norm; None after a clip that changed nothing.
    """

    kernel: torch.Tensor
    upper: float | None
    geometries: str

    def state(self) -> dict[str, Any]:
        """The fields, for a checkpoint."""
        kernel = self.kernel.clone()
        return {"kernel": kernel, "upper": self.upper, "geometries": self.geometries}


@torch.no_grad()
def bound_all(
    all_targets: Targets,
    method: str,
    replicas: Replicas,
    known: dict[str, Known] | None = None,
    *,
    is_first: bool = False,
) -> Pass:
    """Enforce the bounds of all targets: each in one process, for all of them.

    `known` is kept from pass to pass of a training. It contains the kernels that
    satisfied their bounds in an earlier one, by the names of the targets, so that those
    which have hardly moved are not measured again. A pass that `is_first` takes longest
    and says on stderr how far it is.
    """
    start, targets = time.perf_counter(), all_targets.found
    owners = replicas.owners([target.cost for target in targets])
    own: dict[int, torch.Tensor] = {}
    foldings: dict[int, list[Folding]] = {}
    for number, target in enumerate(targets):
        kernel = target.kernel()  # in all processes, in the same order
        folded = _foldings(target, replicas)
        if owners[number] == replicas.rank:
            own[number], foldings[number] = to_double_device(kernel), folded
    done: dict[int, Enforced] = {}
    changes: dict[int, Change] = {}
    errors: dict[int, Exception] = {}
    advance = progress_of(len(own))

    def bound_one(number: int) -> None:
        target, kernel, folded = targets[number], own[number], foldings[number]
        try:
            done[number] = _bound_one(kernel, target, folded, method, known)
            changes[number] = _change(target, kernel, folded, method, done[number])
            if replicas.size > 1:
                changes[number].compute()
        except Exception as error:
            errors[number] = error
        if is_first:
            advance()

    _spread_kernels(bound_one, sorted(own, key=lambda i: -targets[i].cost), own)
    _raise_together(errors, targets, replicas)
    if replicas.size > 1:
        before = replicas.gathered({i: c.before for i, c in changes.items()})
        after = replicas.gathered({i: c.after for i, c in changes.items()})
        changes = {
            i: Change(target.name, before[i], after[i], target.max_norm)
            for i, target in enumerate(targets)
        }
    is_changed = replicas.gathered({i: done[i].is_changed for i in done})
    for number in sorted(number for number in is_changed if is_changed[number]):
        weight = done[number].weight if number in done else None
        _exchange(targets[number], weight, owners[number], replicas)
    in_order = tuple(changes[number] for number in range(len(targets)))
    seconds = time.perf_counter() - start
    return Pass(in_order, all_targets.skipped, seconds)


def _foldings(target: Target, replicas: Replicas) -> list[Folding]:
    """The views of a target, with the gains of the first process.

    Each process counts statistics of its own. DistributedDataParallel gives those of
    the first to all, and they are what is saved.
    """
    return [
        each
        if each.gain is None
        else replace(each, gain=replicas.shared(each.gain, owner=0))
        for each in target.foldings()
    ]


def _raise_together(
    errors: dict[int, Exception], targets: Sequence[Target], replicas: Replicas
) -> None:
    """Raise what went wrong in any process, in all of them: so none waits forever.

    A process that has run out of memory, or the like, raises just that.
    """
    texts = {i: f"Layer {targets[i].name!r}: {e}" for i, e in errors.items()}
    texts = replicas.gathered(texts)
    for number, error in errors.items():
        if not isinstance(error, (ValueError, TypeError)):
            error.add_note(f"In layer {targets[number].name!r}. No weight was changed.")
            raise error
    if texts:
        raise ValueError("\n".join(texts.values()))


def _bound_one(
    kernel: torch.Tensor,
    target: Target,
    foldings: Sequence[Folding],
    method: str,
    known: dict[str, Known] | None,
) -> Enforced:
    """Enforce the bound, unless the kernel is known to satisfy it."""
    in_training = known is not None
    known = {} if known is None else known
    if target.name in known and not target.is_folded:
        found = reuse_if_unmoved(known[target.name], kernel, target)
        if found is not None:
            return found
    known.pop(target.name, None)
    if target.is_folded:  # never known: the gains of a BatchNorm move as well
        return enforce_folded(
            kernel, foldings, target.max_norm, method, in_training=in_training
        )
    found = enforce(
        kernel, target.geometries, target.max_norm, method, in_training=in_training
    )
    if method != "clip" or not found.is_changed:  # a clipped kernel only comes near
        views = _views(target)
        known[target.name] = Known(found.weight.clone(), found.after, views)
    return found


def reuse_if_unmoved(
    known: Known, kernel: torch.Tensor, target: Target
) -> Enforced | None:
    """The result of `enforce`, if it follows from how far the kernel has moved.

    Without a known norm, that is after a clip which changed nothing, the kernel must be
    the same.
    """
    if known.geometries != _views(target) or known.kernel.shape != kernel.shape:
        return None
    norm, most, was = known.upper, target.max_norm, known.kernel.to(kernel.device)
    if not torch.equal(kernel, was):
        if known.upper is None:
            return None
        norm = _after_move(known.upper, kernel, was, target.geometries)
        most = min(most, known.upper * UNMOVED_FACTOR)
    if norm is None or norm <= most:
        return Enforced(kernel, False, norm, norm)
    return None


def _after_move(
    upper: float,
    kernel: torch.Tensor,
    was: torch.Tensor,
    geometries: Sequence[Geometry],
) -> float:
    """The most that the norm of a kernel can be, if it was at most `upper`."""
    double = torch.promote_types(kernel.dtype, torch.float64)
    moved = torch.linalg.vector_norm(kernel.to(double) - was.to(double))
    # The squares of the smallest entries may be lost.
    most = float(moved) + math.sqrt(kernel.numel() * SMALLEST_NORMAL)
    lipschitz = max(norm_lipschitz(kernel, geometry) for geometry in geometries)
    return math.nextafter(upper + ROUNDING * lipschitz * most, math.inf)


def _views(target: Target) -> str:
    return "\n".join(map(text_of, target.geometries))


def _change(
    target: Target,
    kernel: torch.Tensor,
    foldings: Sequence[Folding],
    method: str,
    done: Enforced,
) -> Change:
    """What was done to a kernel; unknown norms are computed when they are asked for."""
    before, after = done.before, done.after
    if before is None or after is None:
        unknown = partial(folded_norm, kernel.clone(), foldings, method)
        before = unknown if before is None else before
        if after is None and done.is_changed:
            after = partial(folded_norm, done.weight, foldings, method)
        after = before if after is None else after
    return Change(target.name, before, after, target.max_norm)


def _spread_kernels(
    work: Callable[[int], None],
    numbers: list[int],
    kernels: dict[int, torch.Tensor],
) -> None:
    """Call work(number) for each kernel, in threads: a kernel alone fills few cores."""

    def some(start: int, stop: int) -> None:
        for number in numbers[start:stop]:
            work(number)

    if any(kernel.device.type != "cpu" for kernel in kernels.values()):
        some(0, len(numbers))
    elif numbers:
        with one_thread(kernels[numbers[0]]):
            spread(some, len(numbers), only_ours=True)


def _exchange(
    target: Target, weight: torch.Tensor | None, owner: int, replicas: Replicas
) -> None:
    """Write the owner's kernel to the parameter, in every process."""
    parameter = target.parameter
    if weight is None:
        weight = torch.empty(
            parameter.shape, dtype=parameter.dtype, device=parameter.device
        )
    values = weight.reshape(parameter.shape).to(parameter.device).contiguous()
    write(parameter, replicas.shared(values, owner))
