"""Contenders in torch: the paper's lines, Gram iteration, power iteration with QR."""

import torch

from . import ours
from .contender import (
    CERTIFIED,
    LOWER,
    UPPER,
    Contender,
    Run,
    Task,
    not_pointwise,
)

GRAM_STEPS = 6
POWER_STEPS, POWER_VECTORS = 30, 4


def fft_values(task: Task) -> Run:
    """The values of the transformed kernel, frequency by frequency."""
    kernel, n, stride = _tensor(task), task.case.grid, task.case.stride
    return lambda: torch.linalg.svdvals(_transform(kernel, n, stride))


def fft_norm(task: Task) -> Run:
    """The largest of all values."""
    values = fft_values(task)
    return lambda: values().max()


def fft_clip(task: Task) -> Run:
    """Clip the values at every frequency, transform back, and crop."""
    kernel, n, stride = _tensor(task), task.case.grid, task.case.stride
    level, k, into = task.level, task.case.kernel, task.case.into

    def run() -> torch.Tensor:
        h = _transform(kernel, n, stride)
        u, s, vh = torch.linalg.svd(h, full_matrices=False)
        clipped = torch.matmul(u * s.clamp(max=level)[..., None, :], vh)
        apart = _apart(clipped, into, stride)
        return torch.fft.ifft2(apart).real[:, :, :k, :k]

    return run


def gram_norm(task: Task) -> Run:
    """Square H^H H over and over; a root of its Frobenius norm is an upper bound."""
    kernel, n, stride = _tensor(task), task.case.grid, task.case.stride

    def run() -> torch.Tensor:
        h = _transform(kernel, n, stride)
        if h.shape[-2] < h.shape[-1]:
            h = h.mH
        log = torch.zeros(h.shape[:2])  # of what has been divided out
        for step in range(GRAM_STEPS):
            size = torch.linalg.matrix_norm(h)
            h = h / size[..., None, None]
            h = torch.matmul(h.mH, h)
            log = log + size.log() / 2**step
        bound = log.exp() * torch.linalg.matrix_norm(h) ** 0.5**GRAM_STEPS
        return bound.max()

    return run


def power_norm(task: Task) -> Run:
    """Apply the layer and its adjoint to a few images, and make them orthogonal again.

    What the layer then does to the best of them is a lower bound.
    """
    case, kernel = task.case, _tensor(task)
    shape = (POWER_VECTORS, case.into, case.grid, case.grid)
    start = torch.randn(shape, generator=torch.Generator().manual_seed(0))

    def run() -> torch.Tensor:
        x = start
        for _ in range(POWER_STEPS):
            x = _orthonormal(_adjoint(_apply(x, kernel, case.stride), kernel, shape))
        return torch.linalg.matrix_norm(_apply(x, kernel, case.stride).flatten(1), 2)

    return run


def _apply(x: torch.Tensor, kernel: torch.Tensor, stride: int) -> torch.Tensor:
    beyond = kernel.shape[-1] - 1
    wrapped = torch.nn.functional.pad(x, (0, beyond, 0, beyond), mode="circular")
    return torch.nn.functional.conv2d(wrapped, kernel, stride=stride)


def _adjoint(
    y: torch.Tensor, kernel: torch.Tensor, shape: tuple[int, ...]
) -> torch.Tensor:
    """The adjoint of `_apply` on inputs of this shape: what was wrapped adds up."""
    n, stride = shape[-1], shape[-1] // y.shape[-1]
    wide = torch.nn.functional.conv_transpose2d(
        y, kernel, stride=stride, output_padding=stride - 1
    )
    beyond = kernel.shape[-1] - 1
    wide[..., :beyond, :] += wide[..., n:, :]
    wide[..., :beyond] += wide[..., n:]
    return wide[..., :n, :n]


def _orthonormal(x: torch.Tensor) -> torch.Tensor:
    """Images that span the same, at right angles to each other."""
    return torch.linalg.qr(x.flatten(1).T).Q.T.reshape(x.shape)


def _transform(kernel: torch.Tensor, n: int, stride: int) -> torch.Tensor:
    """The matrix of every frequency; with a stride, of those that meet side by side."""
    h = torch.fft.fft2(kernel, s=(n, n))  # (out, in, n, n)
    if stride == 1:
        return h.permute(2, 3, 0, 1)
    out, into, m = h.shape[0], h.shape[1], n // stride
    met = h.reshape(out, into, stride, m, stride, m).permute(3, 5, 0, 2, 4, 1)
    return met.reshape(m, m, out, -1) / stride


def _apart(h: torch.Tensor, into: int, stride: int) -> torch.Tensor:
    """The inverse of what `_transform` does after the transform: (out, in, n, n)."""
    m, _, out, _ = h.shape
    met = h.reshape(m, m, out, stride, stride, into).permute(2, 5, 3, 0, 4, 1)
    return met.reshape(out, into, m * stride, m * stride) * stride


def _tensor(task: Task) -> torch.Tensor:
    return torch.from_numpy(task.weight)


CONTENDERS = (
    Contender(
        "paper, torch",
        {"values": fft_values, "norm": fft_norm, "clip": fft_clip},
        not_pointwise,
    ),
    Contender("Gram iteration, torch", {"norm": gram_norm}, not_pointwise, UPPER),
    Contender("power and QR, torch", {"norm": power_norm}, not_pointwise, LOWER),
    Contender(
        "convspectra, torch",
        {job: ours.taking(make, torch.from_numpy) for job, make in ours.MAKERS.items()},
        norm_kind=CERTIFIED,
    ),
)
