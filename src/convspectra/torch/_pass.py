"""One pass over the kernels of a model that brings each of them inside its bound."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .._report import aligned, cell
from .._within import Within, most_of_change, within
from ._modules import as_kernel, whole
from ._replicas import Replicas, write
from ._targets import Target

ROUNDING = 1.001  # for a norm in single precision
NEAR = 1.05  # how far above the last norm a bound on the present one may be


@dataclass(frozen=True, slots=True)
class Change:
    """What a pass did to one layer: norms before and after, each certified from above.

    That of a kernel that has hardly moved since it was measured may be 5 % too high.
    """

    name: str
    before: float
    after: float
    max_norm: float


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pass did to the layers of a model; `print` shows it as a table.

    Attributes
    ----------
    changes : tuple of Change
        One for each kernel, those that were inside included.
    skipped : dict of str to str
        The reasons why other layers were left as they are, by name.
    seconds : float
    """

    changes: tuple[Change, ...]
    skipped: dict[str, str]
    seconds: float

    def __str__(self) -> str:
        rows = [
            [c.name, cell(c.before), cell(c.after), cell(c.max_norm)]
            for c in self.changes
        ]
        table = aligned(["layer", "norm before", "after", "bound"], rows)
        notes = [f"{name}: left as it is, {why}" for name, why in self.skipped.items()]
        return "\n".join([table, *notes])


@dataclass(slots=True, eq=False)
class Inside:
    """A kernel that was certainly inside its bound, and its norm then."""

    kernel: torch.Tensor
    norm: float

    def norm_now(self, kernel: torch.Tensor, target: Target) -> float:
        """What the norm is at most, by how far the kernel has moved since."""
        wide = torch.promote_types(kernel.dtype, torch.float32)
        moved = torch.linalg.vector_norm(kernel.to(wide) - self.kernel.to(wide))
        reach = max(most_of_change(kernel, g) for g in target.geometries)
        return self.norm + ROUNDING * reach * float(moved)


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
    made: dict[int, Within] = {}
    news: dict[int, tuple[float, float, bool]] = {}
    wrong: dict[int, str] = {}
    for number, (target, owner) in enumerate(zip(targets, owners)):
        kernel = as_kernel(whole(target.parameter.detach()))
        if owner != replicas.rank:
            continue
        try:
            found = _found(kernel, target, method, inside, number)
        except (ValueError, TypeError) as error:
            wrong[number] = f"Layer {target.name!r}: {error}"
            continue
        made[number] = found
        news[number] = found.before, found.after, found.weight is not None
    if wrong := replicas.gathered(wrong):  # on all, so that none is left waiting
        raise ValueError("\n".join(wrong.values()))
    news = replicas.gathered(news)
    changes = []
    for number, target in enumerate(targets):
        before, after, changed = news[number]
        if changed:
            mine = made[number].weight if number in made else None
            _exchange(target, mine, owners[number], replicas)
        changes.append(Change(target.name, before, after, target.max_norm))
    return Pass(tuple(changes), skipped, time.perf_counter() - start)


def _found(
    kernel: torch.Tensor,
    target: Target,
    method: str,
    inside: dict[int, Inside],
    number: int,
) -> Within:
    """The kernel brought inside, unless it is known to be there."""
    if number in inside:
        known = inside[number].norm
        norm = inside[number].norm_now(kernel, target)
        if norm <= min(target.max_norm, known * NEAR):
            return Within(None, norm, norm)
    found = within(kernel, target.geometries, target.max_norm, method)
    inside.pop(number, None)
    if found.after <= target.max_norm:
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
