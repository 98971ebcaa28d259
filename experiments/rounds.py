"""Rounds of projections onto norm ball and support: alternating, Dykstra's, ours."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import convspectra as cs

ROUNDS = (1, 2, 5, 10, 20, 50, 100)
RTOL = 1e-4  # of the norms


@dataclass(frozen=True, slots=True)
class Point:
    """A kernel after so many rounds: its norm over the bound, and how far it moved."""

    rounds: int
    excess: float  # certified upper bound of the norm / max_norm - 1
    distance: float  # Frobenius norm of the change / that of the true projection


def compare(weight: np.ndarray, geometry: cs.Geometry, max_norm: float) -> Any:
    """Follow both iterations, from a kernel outside the ball, on a circular grid."""
    weight = np.asarray(weight, np.float64)
    projection = cs.project(weight, geometry, max_norm, rtol=1e-4)
    distance = float(projection.distance)

    def point(rounds: int, kernel: np.ndarray) -> dict[str, Any]:
        norm = float(cs.operator_norm(kernel, geometry, RTOL).upper)
        moved = float(np.linalg.norm(kernel - weight))
        return asdict(Point(rounds, norm / max_norm - 1, moved / distance))

    kept = dykstra(weight, geometry, max_norm, ROUNDS)
    return {
        "norm": float(projection.before.upper),
        "max_norm": max_norm,
        "project": {
            "excess": float(projection.after.upper) / max_norm - 1,
            "distance": distance,
            "gap": float(projection.gap),
            "rounds": int(projection.rounds),
        },
        "alternating": [
            point(r, cs.clip(weight, geometry, max_norm, rounds=r)) for r in ROUNDS
        ],
        "Dykstra": [point(r, kernel) for r, kernel in zip(ROUNDS, kept)],
    }


def dykstra(
    weight: np.ndarray,
    geometry: cs.Geometry,
    max_norm: float,
    rounds: tuple[int, ...],
) -> list[np.ndarray]:
    """The kernels after these rounds of Dykstra's algorithm (Boyle and Dykstra, 1986).

    A kernel as large as the grid has nothing to crop, so that `clip` is the projection
    onto the norm ball. The other set, kernels with the taps of `weight`, is a subspace
    and needs no correction.
    """
    grid = geometry.out_grid(weight.shape[2:])
    taps = (..., *(slice(k) for k in weight.shape[2:]))
    wide = np.zeros((*weight.shape[:2], *grid))
    wide[taps] = weight
    correction, kept = np.zeros_like(wide), []
    for done in range(1, max(rounds) + 1):
        shifted = wide + correction
        inside = np.asarray(cs.clip(shifted, geometry, max_norm))
        correction = shifted - inside
        wide = np.zeros_like(wide)
        wide[taps] = inside[taps]
        if done in rounds:
            kept.append(wide[taps].copy())
    return kept
