"""Norms that stay bounded while JAX trains, and what stays on the device."""

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
import optax  # noqa: E402
from flax import nnx  # noqa: E402

from convspectra import jax as cj  # noqa: E402

BOUND = 0.5


@pytest.mark.parametrize("case", ["plain", "strided", "transposed-grouped", "zeros"])
def test_a_clip_on_the_device_is_that_of_the_host(case, rng):
    weight, geometry = make(case, rng, "float32")
    want = cs.clip(weight, geometry, 0.8)
    both = jax.value_and_grad(
        lambda w: (jnp.sum(clipped := cj.clip(w, geometry, 0.8)), clipped), has_aux=True
    )
    (_, got), slope = jax.jit(both)(weight)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(weight).max())
    assert not np.any(slope)  # a constant to automatic differentiation


@pytest.mark.parametrize("case", ["strided", "grouped", "transposed-strided"])
def test_the_estimate_is_the_norm_to_single_precision(case, rng):
    weight, geometry = make(case, rng, "float32")
    both = jax.jit(jax.value_and_grad(lambda w: cj.norm_estimate(w, geometry)))
    value, slope = both(weight)
    assert float(value) == pytest.approx(norm_by_matrix(weight, geometry), rel=1e-5)
    direction = rng.standard_normal(weight.shape)
    wide, step = weight.astype("float64"), 1e-6
    ahead, behind = (
        norm_by_matrix(wide + s * direction, geometry) for s in (step, -step)
    )
    want = (ahead - behind) / (2 * step)
    assert np.sum(slope * direction) == pytest.approx(want, rel=1e-3)


@pytest.mark.parametrize(
    "weight", [np.zeros((3, 3, 3)), np.eye(3)[..., None] * np.ones(1)]
)
def test_the_estimate_has_a_finite_derivative_at_zero_and_at_ties(weight):
    weight, geometry = jnp.asarray(weight, "float32"), cs.Geometry(4)
    slope = jax.jit(jax.grad(lambda w: cj.norm_estimate(w, geometry)))(weight)
    assert np.all(np.isfinite(slope))


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
        assert float(found[i]) == pytest.approx(
            norm_by_matrix(weight, geometry), rel=1e-5
        )
        np.testing.assert_allclose(
            clipped[i], cs.clip(weight, geometry, 0.5), atol=1e-5
        )
        assert float(certified[i]) == pytest.approx(float(found[i]), rel=2e-3)


def test_what_is_not_circular_is_refused():
    with pytest.raises(ValueError, match="must be circular and have a grid"):
        cj.norm_estimate(jnp.ones((2, 2, 3)), cs.Geometry(4, boundary="zeros"))


SHARDED = """
import jax, jax.numpy as jnp, numpy as np, convspectra as cs
from convspectra import jax as cj
assert jax.device_count() == 2
mesh = jax.make_mesh((2,), ("out",), axis_types=(jax.sharding.AxisType.Auto,))
across = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("out"))
weight = np.random.default_rng(0).standard_normal((4, 4, 3, 3)).astype("float32")
torus, parts = cs.Geometry(6), jax.device_put(weight, across)
assert len(parts.addressable_shards) == 2
want = cs.operator_norm(weight, torus)
def check(f, most, **options):
    for call in (f, jax.jit(f)):
        np.testing.assert_allclose(np.asarray(call(parts)), most, **options)
check(lambda w: cj.norm_estimate(w, torus), want.upper, rtol=2e-3)
check(lambda w: cs.operator_norm(w, torus).upper, want.upper, rtol=1e-6)
check(lambda w: cj.clip(w, torus, 1.0), cs.clip(weight, torus, 1.0), atol=1e-5)
check(lambda w: cs.project(w, torus, 1.0).weight, cs.project(weight, torus, 1.0).weight)
values = cs.singular_values(weight, torus)
check(lambda w: cs.singular_values(w, torus), values, rtol=1e-4, atol=1e-5)
slope = jax.jit(jax.grad(lambda w: cj.norm_estimate(w, torus)))(parts)
assert np.all(np.isfinite(np.asarray(slope)))
"""


def test_arrays_on_two_devices_are_as_good_as_on_one():
    flags = "--xla_force_host_platform_device_count=2"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SHARDED],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]


class Net(nnx.Module):
    """A small network, one of whose layers is used at two sizes."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        large = nnx.initializers.normal(0.5)
        self.first = nnx.Conv(2, 3, (3, 3), kernel_init=large, rngs=rngs)
        self.shared = nnx.Conv(
            3, 3, (3, 3), padding="CIRCULAR", kernel_init=large, rngs=rngs
        )
        self.head = nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, x):
        x = self.shared(nnx.relu(self.first(x)))
        x = self.shared(x[:, ::2, ::2])
        return self.head(x.mean((1, 2)))


IMAGES = np.random.default_rng(0).standard_normal((4, 6, 6, 2)).astype("float32")


@pytest.fixture
def net():
    net = Net()
    return net, cj.layers(net, IMAGES)


def trained(net, transformation, steps):
    """Real steps, by optax alone; the parameters and the state after each."""
    graph, params, rest = nnx.split(net, nnx.Param, ...)

    @jax.jit
    def step(params, state):
        def loss(params):
            return jnp.mean((nnx.merge(graph, params, rest)(IMAGES) - 3) ** 2)

        grads = jax.grad(loss)(params)
        updates, state = transformation.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    state = transformation.init(params)
    for _ in range(steps):
        params, state = step(params, state)
        yield params, state


def norms_of(params, found):
    return [
        float(cs.operator_norm(one.weight, one.geometry, 1e-7).upper)
        for one in with_params(params, found)
        if not one.name.startswith("head")
    ]


def with_params(params, found):
    net = Net()
    nnx.update(net, params)
    return cj.layers(net, IMAGES)


@pytest.mark.parametrize(("method", "slack"), [("clip", 0.5), ("project", 0)])
def test_parameters_are_inside_after_every_second_update(method, slack, net):
    net, found = net
    bound = cj.spectral_clip(found, BOUND, 2, method=method)
    chain = optax.chain(optax.adam(0.05), bound)
    for number, (params, state) in enumerate(trained(net, chain, 4), start=1):
        norms = norms_of(params, found)
        if number % 2:
            assert max(norms) > BOUND * 1.01  # there is something to do
        else:
            assert max(norms) <= BOUND * (1 + slack)
            assert min(norms) > 0.7 * BOUND
        assert int(state[-1].steps) == number


def test_scaling_keeps_what_is_inside_exactly(net):
    net, found = net
    before = jax.tree.leaves(nnx.state(net, nnx.Param))
    chain = optax.chain(
        optax.sgd(0.0), cj.spectral_clip(found, 100.0, 1, method="scale")
    )
    ((params, _),) = trained(net, chain, 1)
    for was, now in zip(before, jax.tree.leaves(params)):
        np.testing.assert_array_equal(now, was)


def test_trees_are_bounded_and_penalized(net):
    net, found = net
    params = nnx.state(net, nnx.Param)
    inside = jax.jit(lambda p: cj.project_tree(p, found, BOUND, linear=True))(params)
    assert max(norms_of(inside, found)) <= BOUND
    excess = jax.jit(lambda p: cj.penalty(p, found, BOUND))
    want = sum(max(norm - BOUND, 0) ** 2 for norm in norms_of(params, found))
    assert float(excess(params)) == pytest.approx(want, rel=1e-5)
    assert float(excess(inside)) < 1e-6
    slopes = jax.grad(excess)(params)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(slopes))
    only = cj.clip_tree(params, found, {"first/*": 0.1, "*": None})
    np.testing.assert_array_equal(only.shared.kernel[...], params.shared.kernel[...])
    assert np.any(only.first.kernel[...] != params.first.kernel[...])


def test_the_state_goes_through_a_checkpoint_of_orbax(net, tmp_path):
    ocp = needed("orbax.checkpoint")
    net, found = net
    chain = optax.chain(optax.sgd(0.1, momentum=0.9), cj.spectral_clip(found, BOUND))
    params = nnx.state(net, nnx.Param)
    *others, _ = chain.init(params)
    state = (*others, cj.SpectralClipState(jnp.asarray(3)))
    whole = {"params": nnx.to_pure_dict(params), "state": state}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "saved", whole)
        checkpointer.wait_until_finished()
        again = checkpointer.restore(tmp_path / "saved", whole)
    assert int(again["state"][-1].steps) == 3
    assert isinstance(again["state"][-1], cj.SpectralClipState)


def test_updates_of_low_precision_leave_parameters_inside(net):
    net, found = net
    bound = cj.spectral_clip(found, BOUND, 1, method="scale")
    for factor in (2, 3, 5, 7):  # what is rounded goes either way
        params = jax.tree.map(lambda p, f=factor: f * p, nnx.state(net, nnx.Param))
        updates = jax.tree.map(lambda p: jnp.zeros_like(p, jnp.bfloat16), params)
        updates, _ = bound.update(updates, bound.init(params), params)
        assert max(norms_of(optax.apply_updates(params, updates), found)) <= BOUND
