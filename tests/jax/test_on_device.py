"""What stays on the device, and arrays that are split over several of them."""

import os
import subprocess
import sys

import numpy as np
import pytest
from optional import needed
from oracles import make, norm_by_matrix

import convspectra as cs

for name in ("jax", "flax", "optax"):
    needed(name)
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from convspectra import jax as cj  # noqa: E402

BOUND = 0.8
CLIPPED = ["strided", "transposed-grouped", "zeros"]
ESTIMATED = ["strided", "transposed-grouped"]
TIES = np.stack([np.zeros((3, 3, 3)), np.eye(3)[..., None] * [0, 1, 0]])


@pytest.fixture(scope="module")
def cases():
    """Weight and geometry of each case, in single precision."""
    rng = np.random.default_rng(0)
    return {case: make(case, rng, "float32") for case in CLIPPED}


@pytest.fixture(scope="module")
def on_device(cases):
    """Kernels and estimates with their derivatives, compiled as one function."""

    def clipped(weight, geometry):
        found = cj.clip(weight, geometry, BOUND)
        return jnp.sum(found), found

    @jax.jit
    def all_of_it(weights):
        kernels = {
            case: jax.value_and_grad(clipped, has_aux=True)(
                weights[case], cases[case][1]
            )
            for case in CLIPPED
        }
        norms = {
            case: jax.value_and_grad(cj.norm_estimate)(weights[case], cases[case][1])
            for case in ESTIMATED
        }
        slope = jax.grad(lambda w: cj.norm_estimate(w, cs.Geometry(4)))
        return kernels, norms, jax.vmap(slope)(TIES.astype("float32"))

    return all_of_it({case: weight for case, (weight, _) in cases.items()})


@pytest.mark.parametrize("case", CLIPPED)
def test_a_clip_on_the_device_is_that_of_the_host(case, cases, on_device):
    weight, geometry = cases[case]
    (_, got), slope = on_device[0][case]
    assert got.dtype == jnp.float32
    want = cs.clip(weight, geometry, BOUND)
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(weight).max())
    assert not np.any(slope)  # a constant to automatic differentiation


@pytest.mark.parametrize("case", ESTIMATED)
def test_the_estimate_is_the_norm_to_single_precision(case, cases, on_device, rng):
    weight, geometry = cases[case]
    value, slope = on_device[1][case]
    assert float(value) == pytest.approx(norm_by_matrix(weight, geometry), rel=1e-5)
    direction = rng.standard_normal(weight.shape)
    wide, step = weight.astype("float64"), 1e-6
    ahead, behind = (
        norm_by_matrix(wide + s * direction, geometry) for s in (step, -step)
    )
    want = (ahead - behind) / (2 * step)
    assert np.sum(slope * direction) == pytest.approx(want, rel=1e-3)


def test_the_estimate_has_a_finite_derivative_at_zero_and_at_ties(on_device):
    assert np.all(np.isfinite(on_device[2]))


def test_many_kernels_at_once_by_vmap(rng):
    weights, geometry = rng.standard_normal((3, 2, 2, 3)).astype("f4"), cs.Geometry(5)
    found, clipped, certified = jax.jit(
        jax.vmap(
            lambda w: (
                cj.norm_estimate(w, geometry),
                cj.clip(w, geometry, 0.5),
                cs.operator_norm(w, geometry).upper,
            )
        )
    )(weights)
    for i, weight in enumerate(weights):
        norm = norm_by_matrix(weight, geometry)
        assert float(found[i]) == pytest.approx(norm, rel=1e-5)
        want = cs.clip(weight, geometry, 0.5)
        np.testing.assert_allclose(clipped[i], want, atol=1e-5)
        assert float(certified[i]) == pytest.approx(float(found[i]), rel=2e-3)


def test_what_is_not_circular_is_refused():
    with pytest.raises(ValueError, match="must be circular and have a grid"):
        cj.norm_estimate(jnp.ones((2, 2, 3)), cs.Geometry(4, boundary="zeros"))


SHARDED = """
import jax, numpy as np, convspectra as cs
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from convspectra import jax as cj

weight = np.random.default_rng(0).standard_normal((4, 4, 3, 3)).astype("float32")
torus = cs.Geometry(6)
norm = cs.operator_norm(weight, torus).upper

def all_of_it(w):
    estimate, slope = jax.value_and_grad(lambda w: cj.norm_estimate(w, torus))(w)
    upper, steep = jax.value_and_grad(lambda w: cs.operator_norm(w, torus).upper)(w)
    kernels = cj.clip(w, torus, 1.0), cs.project(w, torus, 1.0).weight
    return (estimate, upper), (slope, steep), kernels, cs.singular_values(w, torus)

def check(found):
    norms, slopes, kernels, values = jax.tree.map(np.asarray, found)
    np.testing.assert_allclose(norms, norm, rtol=2e-3)
    np.testing.assert_allclose(*slopes, atol=1e-3)
    np.testing.assert_allclose(kernels[0], cs.clip(weight, torus, 1.0), atol=1e-5)
    np.testing.assert_allclose(kernels[1], cs.project(weight, torus, 1.0).weight)
    np.testing.assert_allclose(values, cs.singular_values(weight, torus), atol=1e-5)

plain = {"use_bias": False, "kernel_init": lambda *_, **__: weight.T}
conv = nnx.Conv(4, 4, (3, 3), padding="CIRCULAR", **plain, rngs=nnx.Rngs(0))
found = cj.layers(conv, jax.ShapeDtypeStruct((1, 6, 6, 4), "float32"))
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((2,), ("out",), axis_types=(kind,))
    def split(x, *axes):
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*axes)))
    parts = split(weight, "out")
    assert len(parts.addressable_shards) == 2
    check(jax.jit(all_of_it)(parts))
    upper = cs.operator_norm(parts, torus).upper  # at once
    np.testing.assert_allclose(np.asarray(upper), norm, rtol=1e-6)
    params = {"kernel": split(weight.transpose(2, 3, 1, 0), None, None, None, "out")}
    chain = cj.spectral_clip(found, 1.0, 1, method="scale")
    with jax.set_mesh(mesh):
        updates = jax.tree.map(lambda x: 0 * x, params)
        updates, _ = jax.jit(chain.update)(updates, chain.init(params), params)
    after = params["kernel"] + updates["kernel"]
    assert after.sharding.spec == params["kernel"].sharding.spec
    after = np.asarray(after).transpose(3, 2, 0, 1)
    assert 0.99 < cs.operator_norm(after, torus, 1e-6).upper <= 1.0
"""


def test_arrays_on_two_devices_are_as_good_as_on_one():
    flags = "--xla_force_host_platform_device_count=2"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SHARDED],
        env=os.environ
        | {
            "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {flags}",
            "JAX_PLATFORMS": "cpu",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
