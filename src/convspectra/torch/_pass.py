"""One pass over the kernels of a model that bounds the norm of each of them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch

from .._arrays.host import one_thread
from .._arrays.threads import spread
from .._bound.enforce import Within, most_of_change, norm_of, within
from .._text import Upper, aligned, cell
from ._modules import as_kernel, whole
from ._replicas import Replicas, write
from ._targets import Target

ROUNDING = 1.001  # for a norm in single precision
Norm = float | Callable[[], float]
NEAR = 1.05  # how far above the last norm a bound on the present one may be


class Change:
    """The certified upper bounds on one layer's norm before and after a pass.

    With the method "clip" they are computed on first access, to a hundredth. If a
    kernel has hardly moved since its norm was computed, the bound may be 5 % too high.

    Attributes
    ----------
    name : str
    before, after : float
    max_norm : float
    """

    name: str
    max_norm: float

    def __init__(self, name: str, before: Norm, after: Norm, max_norm: float) -> None:
        self.name, self.max_norm = name, max_norm
        self._before, self._after = before, after

    @cached_property
    def before(self) -> float:
        return self._before() if callable(self._before) else self._before

    @cached_property
    def after(self) -> float:
        return self._after() if callable(self._after) else self._after

    def __repr__(self) -> str:
        return f"Change({self.name!r}, {self.before}, {self.after}, {self.max_norm})"


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pass did to the layers of a model; `print` shows it as a table.

    Attributes
    ----------
    changes : tuple of Change
        One for each kernel, including those that already satisfied their bound.
    skipped : dict of str to str
        The names of layers that were left unchanged, and the reasons.
    seconds : float
    """

    changes: tuple[Change, ...]
    skipped: dict[str, str]
    seconds: float

    def __str__(self) -> str:
        rows = [
            [c.name, cell(Upper(c.before)), cell(Upper(c.after)), str(c.max_norm)]
            for c in self.changes
        ]
        table = aligned(["layer", "norm before", "after", "bound"], rows)
        notes = [f"{name}: left unchanged, {why}" for name, why in self.skipped.items()]
        return "\n".join([table, *notes])


@dataclass(slots=True, eq=False)
class Inside:
    """A kernel that was inside its bound, and its norm then, unless it was clipped."""

    kernel: torch.Tensor
    norm: float | None

    def still(self, kernel: torch.Tensor, target: Target) -> Within | None:
        """What a pass would find, if the kernel has hardly moved and is inside."""
        if self.norm is None:
            return (
                Within(None, None, None) if torch.equal(kernel, self.kernel) else None
            )
        wide = torch.promote_types(kernel.dtype, torch.float32)
        moved = torch.linalg.vector_norm(kernel.to(wide) - self.kernel.to(wide))
        reach = max(most_of_change(kernel, g) for g in target.geometries)
        norm = self.norm + ROUNDING * reach * float(moved)
        inside = norm <= min(target.max_norm, self.norm * NEAR)
        return Within(None, norm, norm) if inside else None


@torch.no_grad()
def bring_inside(
    targets: Sequence[Target],
    method: str,
    replicas: Replicas,
    inside: dict[int, Inside],
    skipped: dict[str, str],
) -> Pass:
    """Bring all targets inside their bounds; each by one process, for all of them.

    `inside` is kept from pass to pass: what it knows to be inside is not measured.
    """
    start = time.perf_counter()
    owners = replicas.owners([target.cost for target in targets])
    each, kernels = list(enumerate(targets)), {}
    for (number, target), owner in zip(each, owners):
        kernel = as_kernel(whole(target.parameter.detach()))
        if owner == replicas.rank:
            kernels[number] = kernel
    made: dict[int, Within] = {}
    wrong: dict[int, str] = {}

    def bring(number: int) -> None:
        target = targets[number]
        try:
            made[number] = _found(kernels[number], target, method, inside, number)
        except (ValueError, TypeError) as error:
            wrong[number] = f"Layer {target.name!r}: {error}"

    _each(bring, sorted(kernels, key=lambda i: -targets[i].cost), kernels)
    if wrong := replicas.gathered(wrong):  # on all, so that none is left waiting
        raise ValueError("\n".join(wrong.values()))
    changes = {i: _change(targets[i], kernels[i], method, made[i]) for i in made}
    if replicas.size > 1:
        norms = replicas.gathered({i: (c.before, c.after) for i, c in changes.items()})
        changes = {
            i: Change(t.name, norms[i][0], norms[i][1], t.max_norm) for i, t in each
        }
    changed = replicas.gathered({i: f.weight is not None for i, f in made.items()})
    for number in sorted(number for number in changed if changed[number]):
        mine = made[number].weight if number in made else None
        _exchange(targets[number], mine, owners[number], replicas)
    in_order = tuple(changes[number] for number, _ in each)
    return Pass(in_order, skipped, time.perf_counter() - start)


def _change(target: Target, kernel: torch.Tensor, method: str, found: Within) -> Change:
    """What was done to a kernel; norms that are not known wait to be asked for."""
    before, after = found.before, found.after
    if before is None or after is None:
        before = partial(norm_of, kernel.clone(), target.geometries, method)
        after = before
        if found.weight is not None:
            after = partial(norm_of, found.weight, target.geometries, method)
    return Change(target.name, before, after, target.max_norm)


def _each(
    bring: Callable[[int], None],
    numbers: list[int],
    kernels: dict[int, torch.Tensor],
) -> None:
    """Layer by layer over the cores: each alone has less to share out."""

    def some(start: int, stop: int) -> None:
        for number in numbers[start:stop]:
            bring(number)

    if any(kernel.device.type != "cpu" for kernel in kernels.values()):
        some(0, len(numbers))
    elif numbers:
        with one_thread(kernels[numbers[0]]):
            spread(some, len(numbers), only_ours=True)


def _found(
    kernel: torch.Tensor,
    target: Target,
    method: str,
    inside: dict[int, Inside],
    number: int,
) -> Within:
    """The kernel brought inside, unless it is known to be there."""
    if number in inside:
        known = inside[number].still(kernel, target)
        if known is not None:
            return known
    found = within(kernel, target.geometries, target.max_norm, method)
    inside.pop(number, None)
    if found.weight is None or method != "clip":
        kernel = kernel if found.weight is None else found.weight
        inside[number] = Inside(kernel.clone(), found.after)
    return found


def _exchange(
    target: Target, mine: torch.Tensor | None, owner: int, replicas: Replicas
) -> None:
    parameter = target.parameter
    if mine is None:
        mine = torch.empty(
            parameter.shape, dtype=parameter.dtype, device=parameter.device
        )
    values = mine.reshape(parameter.shape).contiguous()
    write(parameter, replicas.shared(values, owner))
