"""The paper's lines, in a library that has NumPy's names."""

from collections.abc import Mapping
from typing import Any

from ..cases import Task
from . import Job

LAYOUT = (2, 3, 1, 0)  # from (out, in, kernel, kernel) to the paper's


def paper_jobs(xp: Any) -> Mapping[str, Job]:
    """Return the jobs on kernels of shape (kernel, kernel, in, out)."""

    def transform(kernel: Any, n: int) -> Any:
        return xp.fft.fft2(kernel, (n, n), axes=(0, 1))  # (n, n, in, out)

    def values(kernel: Any, task: Task) -> Any:
        return xp.linalg.svd(transform(kernel, task.case.grid), compute_uv=False)

    def norm(kernel: Any, task: Task) -> Any:
        return values(kernel, task).max()

    def clip(kernel: Any, task: Task) -> Any:
        h = transform(kernel, task.case.grid)
        u, s, vh = xp.linalg.svd(h, full_matrices=False)
        clipped = xp.matmul(u * xp.minimum(s, task.max_norm)[..., None, :], vh)
        back = xp.fft.ifft2(clipped, axes=(0, 1)).real
        k = task.case.kernel
        return back[:k, :k].transpose(3, 2, 0, 1)

    return {"values": values, "norm": norm, "clip": clip}
