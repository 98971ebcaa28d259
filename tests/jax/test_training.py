"""Norms that stay bounded while JAX trains; tests/test_frameworks.py has more."""

from types import SimpleNamespace

import numpy as np
import pytest
from optional import needed

import convspectra as cs

for name in ("jax", "flax", "optax"):
    needed(name)
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from flax import nnx  # noqa: E402
from flax_layers import drawn  # noqa: E402

from convspectra import jax as cj  # noqa: E402

BOUND = 0.5
IMAGES = np.random.default_rng(0).standard_normal((2, 4, 4, 2)).astype("float32")


class Net(nnx.Module):
    """A small network, one of whose layers is used at two sizes."""

    def __init__(self):
        random = {"kernel_init": drawn, "rngs": nnx.Rngs(0)}
        self.first = nnx.Conv(2, 3, (3, 3), **random)
        self.shared = nnx.Conv(3, 3, (3, 3), padding="CIRCULAR", **random)
        self.head = nnx.Linear(3, 2, **random)

    def __call__(self, x):
        x = self.shared(nnx.relu(self.first(x)))
        x = self.shared(x[:, ::2, ::2])
        return self.head(x.mean((1, 2)))


@pytest.fixture(scope="module")
def net():
    """The network, its layers, and its parameters as they are in the beginning."""
    found = Net()
    params = nnx.state(found, nnx.Param)
    return SimpleNamespace(model=found, layers=cj.layers(found, IMAGES), params=params)


def norms_of(params):
    net = Net()
    nnx.update(net, params)
    return [
        float(cs.operator_norm(np.asarray(one.weight), one.geometry, 1e-7).upper)
        for one in cj.layers(net, IMAGES)
        if not one.name.startswith("head")
    ]


def test_a_clip_comes_after_every_second_update(net):
    chain = optax.chain(optax.sgd(0.5), cj.spectral_clip(net.layers, BOUND, 2))
    graph, _, rest = nnx.split(net.model, nnx.Param, ...)

    @jax.jit
    def step(params, state):
        def loss(params):
            return jnp.mean((nnx.merge(graph, params, rest)(IMAGES) - 3) ** 2)

        updates, state = chain.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    params, state = net.params, chain.init(net.params)
    for number in range(1, 5):
        params, state = step(params, state)
        norms = norms_of(params)
        if number % 2:
            assert max(norms) > BOUND * 1.01  # there is something to do
        else:
            assert 0.7 * BOUND < min(norms) <= max(norms) <= BOUND * 1.5
        assert int(state[-1].steps) == number


def test_scaling_leaves_parameters_inside_after_updates_of_low_precision(net):
    bound = cj.spectral_clip(net.layers, BOUND, 1, method="scale")
    update = jax.jit(bound.update)
    for factor in (2, 3, 5, 7, 1e-3):  # what is rounded goes either way
        params = jax.tree.map(lambda p, f=factor: np.float32(f) * p, net.params)
        zeros = jax.tree.map(lambda p: np.zeros(p.shape, jnp.bfloat16), params)
        updates, _ = update(zeros, bound.init(params), params)
        after = optax.apply_updates(params, updates)
        assert max(norms_of(after)) <= BOUND
        if factor < 1:  # what is inside stays exactly as it is
            for was, now in zip(jax.tree.leaves(params), jax.tree.leaves(after)):
                np.testing.assert_array_equal(now, was)


@pytest.mark.parametrize("method", ["clip", "project", "scale"])
def test_an_update_is_bounded_outside_of_jit_too(net, method):
    bound = cj.spectral_clip(net.layers, BOUND, 1, method=method)
    params = jax.tree.map(jnp.asarray, net.params)  # NumPy's are no problem
    zeros = jax.tree.map(jnp.zeros_like, params)
    assert min(norms_of(params)) > BOUND
    updates, state = bound.update(zeros, bound.init(params), params)
    norms = norms_of(optax.apply_updates(params, updates))
    assert min(norms) > 0.7 * BOUND
    assert max(norms) <= (1.5 if method == "clip" else 1) * BOUND
    assert int(state.steps) == 1
    broken = jax.tree.map(lambda p: jnp.full_like(p, jnp.nan), params)
    with pytest.raises(ValueError, match="Layer 'first/kernel': `weight` must be fin"):
        bound.update(zeros, state, broken)


@pytest.mark.parametrize(
    ("kernels", "updates", "method"),
    [
        ("bfloat16", "bfloat16", "scale"),
        ("bfloat16", "bfloat16", "project"),
        ("float16", "float16", "scale"),
        ("float32", "bfloat16", "scale"),
    ],
)
def test_half_precision_does_not_shrink_a_wide_layer(kernels, updates, method):
    init = nnx.initializers.he_normal()
    args = {"kernel_init": init, "param_dtype": kernels, "rngs": nnx.Rngs(0)}
    layer = nnx.Conv(32, 32, (3, 3), padding="CIRCULAR", use_bias=False, **args)
    found = cj.layers(layer, np.zeros((1, 4, 4, 32), "float32"))
    params = nnx.state(layer, nnx.Param)
    bound = cj.spectral_clip(found, 1.0, 1, method=method)
    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, updates), params)
    change, _ = jax.jit(bound.update)(zeros, bound.init(params), params)
    assert change.kernel[...].dtype == updates
    after = optax.apply_updates(params, change)
    was, now = (np.asarray(p.kernel[...], float).T for p in (params, after))
    norm = float(cs.operator_norm(now, found[0].geometry, 1e-7).upper)
    assert 1 - 2 * float(jnp.finfo(kernels).eps) - 1e-3 < norm <= 1
    want = (
        cs.project(was, found[0].geometry, 1.0).weight if method == "project" else was
    )
    assert np.vdot(now, want) > 0.99 * np.linalg.norm(now) * np.linalg.norm(want)


def test_dense_layers_alone_are_refused_unless_asked_for():
    model = nnx.Sequential(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
    found = cj.layers(model, jnp.ones((1, 2)))
    with pytest.raises(ValueError, match=r"only dense layers.*`linear=True`"):
        cj.spectral_clip(found, 0.1)
    cj.spectral_clip(found, 0.1, linear=True)


def test_trees_are_bounded_and_penalized(net):
    params, found = net.params, net.layers

    @jax.jit
    def bounded(params):
        only = cj.clip_tree(params, found, {"first/*": 0.1, "*": None})
        return cj.project_tree(params, found, BOUND, linear=True), only

    inside, only = bounded(params)
    assert max(norms_of(inside)) <= BOUND
    excess = jax.jit(jax.value_and_grad(lambda p: cj.penalty(p, found, BOUND)))
    value, slopes = excess(params)
    want = sum(max(norm - BOUND, 0) ** 2 for norm in norms_of(params))
    assert float(value) == pytest.approx(want, rel=1e-5)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(slopes))
    assert float(excess(inside)[0]) < 1e-6
    np.testing.assert_array_equal(only.shared.kernel[...], params.shared.kernel[...])
    assert np.any(only.first.kernel[...] != params.first.kernel[...])


def test_the_state_goes_through_a_checkpoint_of_orbax(net, tmp_path):
    ocp = needed("orbax.checkpoint")
    chain = optax.chain(optax.identity(), cj.spectral_clip(net.layers, BOUND))
    *others, _ = chain.init(net.params)
    whole = (*others, cj.SpectralClipState(jnp.asarray(3)))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "saved", whole)
        checkpointer.wait_until_finished()
        again = checkpointer.restore(tmp_path / "saved", whole)
    assert int(again[-1].steps) == 3
    assert isinstance(again[-1], cj.SpectralClipState)
