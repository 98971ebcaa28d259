"""In torch: the paper's lines, Gram iteration, power iteration with QR, convspectra."""

import torch
from torch.nn import functional

from ..cases import Task
from . import LOWER, UPPER, Contender, not_pointwise
from .ours import ours

GRAM_STEPS = 6
POWER_STEPS, POWER_VECTORS = 30, 4


def paper_values(kernel: torch.Tensor, task: Task) -> torch.Tensor:
    """The singular values of the transformed kernel, frequency by frequency."""
    return torch.linalg.svdvals(_transform(kernel, task))


def paper_norm(kernel: torch.Tensor, task: Task) -> torch.Tensor:
    """The largest of all values."""
    return paper_values(kernel, task).max()


def paper_clip(kernel: torch.Tensor, task: Task) -> torch.Tensor:
    """Clip the values at every frequency, transform back, and crop."""
    u, s, vh = torch.linalg.svd(_transform(kernel, task), full_matrices=False)
    clipped = torch.matmul(u * s.clamp(max=task.max_norm)[..., None, :], vh)
    k = task.case.kernel
    return torch.fft.ifft2(_unfold_aliases(clipped, task)).real[:, :, :k, :k]


def gram_norm(kernel: torch.Tensor, task: Task) -> torch.Tensor:
    """Square H^H H repeatedly; a root of its Frobenius norm is an upper bound."""
    h = _transform(kernel, task)
    if h.shape[-2] < h.shape[-1]:
        h = h.mH
    log = torch.zeros(h.shape[:2])  # of what has been divided out
    for step in range(GRAM_STEPS):
        frobenius = torch.linalg.matrix_norm(h)
        h = h / frobenius[..., None, None]
        h = torch.matmul(h.mH, h)
        log = log + frobenius.log() / 2**step
    return (log.exp() * torch.linalg.matrix_norm(h) ** 0.5**GRAM_STEPS).max()


def power_norm(kernel: torch.Tensor, task: Task) -> torch.Tensor:
    """Apply the layer and its adjoint to a few images, and orthonormalize them by QR.

    The norm of the layer on their span is a lower bound.
    """
    n, stride = task.case.grid, task.case.stride
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((POWER_VECTORS, kernel.shape[1], n, n), generator=generator)
    for _ in range(POWER_STEPS):
        x = _adjoint(_apply(x, kernel, stride), kernel, n)
        x = torch.linalg.qr(x.flatten(1).T).Q.T.reshape(x.shape)
    return torch.linalg.matrix_norm(_apply(x, kernel, stride).flatten(1), 2)


def _apply(x: torch.Tensor, kernel: torch.Tensor, stride: int) -> torch.Tensor:
    overlap = kernel.shape[-1] - 1
    wrapped = functional.pad(x, (0, overlap, 0, overlap), mode="circular")
    return functional.conv2d(wrapped, kernel, stride=stride)


def _adjoint(y: torch.Tensor, kernel: torch.Tensor, n: int) -> torch.Tensor:
    """The adjoint of `_apply` on n x n inputs: what was wrapped is added back."""
    stride, overlap = n // y.shape[-1], kernel.shape[-1] - 1
    x = functional.conv_transpose2d(y, kernel, stride=stride, output_padding=stride - 1)
    x[..., :overlap, :] += x[..., n:, :]
    x[..., :overlap] += x[..., n:]
    return x[..., :n, :n]


def _transform(kernel: torch.Tensor, task: Task) -> torch.Tensor:
    """The matrix of every frequency; with a stride, aliases stand side by side."""
    n, stride = task.case.grid, task.case.stride
    h = torch.fft.fft2(kernel, s=(n, n))  # (out, in, n, n)
    if stride == 1:
        return h.permute(2, 3, 0, 1)
    out, channels, m = h.shape[0], h.shape[1], n // stride
    folded = h.reshape(out, channels, stride, m, stride, m).permute(3, 5, 0, 2, 4, 1)
    return folded.reshape(m, m, out, -1) / stride


def _unfold_aliases(h: torch.Tensor, task: Task) -> torch.Tensor:
    """The inverse of what `_transform` does after the transform: (out, in, n, n)."""
    n, stride = task.case.grid, task.case.stride
    m, _, out, _ = h.shape
    unfolded = h.reshape(m, m, out, stride, stride, -1).permute(2, 5, 3, 0, 4, 1)
    return unfolded.reshape(out, -1, n, n) * stride


CONTENDERS = (
    Contender(
        "paper, torch",
        {"values": paper_values, "norm": paper_norm, "clip": paper_clip},
        torch.from_numpy,
        refuses=not_pointwise,
    ),
    Contender(
        "Gram iteration, torch",
        {"norm": gram_norm},
        torch.from_numpy,
        refuses=not_pointwise,
        norm_kind=UPPER,
    ),
    Contender(
        "power and QR, torch",
        {"norm": power_norm},
        torch.from_numpy,
        refuses=not_pointwise,
        norm_kind=LOWER,
    ),
    ours("torch", torch.from_numpy),
)
