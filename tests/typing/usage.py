"""A program as a user writes it; basedpyright checks it in strict mode."""

from typing import Any, Literal, assert_type

import numpy as np
import torch

import convspectra as cs
from convspectra import baselines
from convspectra.torch import Change, Layers, Pass, SpectralClip, bounded, layers


def geometries() -> cs.Geometry:
    geometry = cs.Geometry(grid=(32, 32), stride=2, padding=1, boundary="zeros")
    assert_type(geometry.grid, int | tuple[int, ...] | None)
    assert_type(geometry.stride, int | tuple[int, ...])
    assert_type(geometry.padding, Literal["same"] | int | tuple[tuple[int, int], ...])
    assert_type(geometry.groups, int)
    assert_type(geometry.transposed, bool)
    assert_type(geometry.out_grid((3, 3)), tuple[int, ...])
    assert_type(geometry.torus((3, 3)), cs.Geometry)
    # All that the fields are made from.
    cs.Geometry(None)
    cs.Geometry([32, 32], padding=[(1, 2), (0, 1)])
    cs.Geometry(np.array([32, 32]), padding=(1, (0, 2)))
    cs.Geometry(torch.Size([8, 8]), padding="valid", output_padding=0)
    cs.Geometry(np.int64(8), groups=np.int64(2), padding=[1])
    return geometry


def mistakes(geometry: cs.Geometry) -> None:
    """Each is refused by the checker, and would be when it runs."""
    cs.Geometry("32")  # pyright: ignore[reportArgumentType]
    cs.Geometry(32.0)  # pyright: ignore[reportArgumentType]
    cs.Geometry(32, padding="full")  # pyright: ignore[reportArgumentType]
    cs.Geometry(32, boundary="wrap")  # pyright: ignore[reportArgumentType]
    geometry.groups = 2  # pyright: ignore[reportAttributeAccessIssue]
    cs.operator_norms  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  # noqa: B018


def numbers(geometry: cs.Geometry) -> None:
    weight = np.ones((4, 4, 3, 3))
    norm = cs.operator_norm(weight, geometry, rtol=1e-3)
    assert_type(norm, cs.NormBounds)
    assert_type(norm.gap, float)
    assert_type(norm.method, str)
    assert_type(norm.grid, tuple[int, ...] | None)
    assert_type(norm.upper, Any)  # a scalar of the array's library
    projection = cs.project(weight, geometry, max_norm=1.0)
    assert_type(projection, cs.Projection)
    assert_type(projection.after, cs.NormBounds)
    assert_type(cs.plan(weight, geometry), cs.Plan)
    assert_type(baselines.reshaped_norm(weight, geometry), baselines.Baseline)
    report = cs.spectra([cs.Layer("conv", weight, geometry)])
    assert_type(report, cs.Report)
    assert_type(report.layers, tuple[cs.LayerSpectrum, ...])
    assert_type(report.layers[0].geometry, cs.Geometry)
    assert_type(report.rows(), list[dict[str, Any]])
    assert_type(cs.__version__, str)


def training() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1))
    example = torch.zeros(1, 3, 8, 8)
    found = layers(model, example)
    assert_type(found, Layers)
    assert_type(found[0], cs.Layer)
    assert_type(found[:1], tuple[cs.Layer, ...])
    assert_type(found.skipped, dict[str, str])
    assert_type(cs.torch.layers(model), Layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bounds = {"0": 0.5, "*": None}
    clip = SpectralClip(model, bounds, every=1, example=example).attach(optimizer)
    assert_type(clip, SpectralClip)
    assert_type(clip.last, Pass | None)
    assert_type(clip.apply().changes, tuple[Change, ...])
    assert_type(clip.share, float)
    assert_type(bounded(torch.nn.Conv2d(3, 4, 3), 1.0), torch.nn.Conv2d)
