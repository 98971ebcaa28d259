"""Which kernels of a file are taken, and what geometry each has."""

import numpy as np
import pytest

from convspectra import Geometry, dense_matrix
from convspectra._checkpoint.records import Kernel, Network
from convspectra._checkpoint.select import (
    Options,
    check_table,
    choose,
    read_table,
    with_geometry,
)


def kernel(name, shape=(4, 2, 3, 3), factors=None, **stated):
    numbers = np.random.default_rng(0).standard_normal(shape)
    return Kernel(name, shape, "float64", stated, lambda: numbers, factors)


def network(*names, skipped=()):
    return Network(tuple(map(kernel, names)), skipped, lambda *_: None)


def test_keys_choose_by_name_and_by_pattern():
    found = network("a.conv1", "a.conv2", "b.conv1", skipped=(("a.bias", "is short"),))
    chosen, skipped = choose(found, ["a.*"])
    assert [one.name for one in chosen] == ["a.conv1", "a.conv2"]
    assert skipped == {"a.bias": "is short"}
    chosen, skipped = choose(found, None)
    assert len(chosen) == 3
    with pytest.raises(ValueError, match=r"'a\.bias' is short"):
        choose(found, ["a.bias"])
    with pytest.raises(ValueError, match=r"got 'c'. There are: a.conv1, a.conv2"):
        choose(found, ["c"])
    with pytest.raises(ValueError, match=r"got none: 'a\.bias' is short"):
        choose(network(skipped=(("a.bias", "is short"),)), None)


def test_a_file_is_believed_before_the_options_and_a_table_before_the_file():
    kernels = [kernel("stated", grid=8, stride=2), kernel("silent")]
    options = {"grid": 5, "stride": 1, "boundary": "zeros"}
    table = {"*lent": {"grid": [6, 7], "padding": [[0, 1], [2, 0]]}}
    both = Options(geometry=options, table=table)
    (stated, silent), _ = with_geometry(kernels, both)
    assert stated.geometry == Geometry(8, stride=2, boundary="zeros").broadcast_to(2)
    want = Geometry((6, 7), padding=((0, 1), (2, 0)), boundary="zeros")
    assert silent.geometry == want
    every_size = Options(geometry=options, table={"silent": {"grid": "none"}})
    (every,), _ = with_geometry([kernels[1]], every_size)
    assert every.geometry.grid is None


def test_a_kernel_without_a_geometry_is_skipped_unless_it_is_all_there_is():
    kernels = [kernel("fits", groups=2), kernel("not", groups=3)]
    layers, skipped = with_geometry(kernels, Options())
    assert [layer.name for layer in layers] == ["fits"]
    assert "4 channels, which 3 groups do not divide" in skipped["not"]
    with pytest.raises(ValueError, match="'not': has 4 channels"):
        with_geometry(kernels[1:], Options())


def test_a_table_is_read_from_a_file(tmp_path):
    path = tmp_path / "layers.toml"
    path.write_text('["conv*"]\ngrid = [32, 32]\nboundary = "zeros"\n')
    found = read_table(path)
    check_table(found, ["conv1", "fc"])
    assert found == {"conv*": {"grid": [32, 32], "boundary": "zeros"}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[conv1\n", "must be a file in TOML"),
        ("[conv1]\nstrides = 2\n", "some of grid, stride, .* got {'strides': 2}"),
        ("grid = 3\n", "a table must have some of"),
    ],
)
def test_a_bad_table_is_refused(tmp_path, text, message):
    path = tmp_path / "layers.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_table(path)


def test_a_table_for_no_kernel_is_refused():
    with pytest.raises(ValueError, match="for a kernel of the file, got 'conv9'"):
        check_table({"conv9": {"grid": 3}}, ["conv1"])


def test_what_nobody_states_is_known_to_be_unknown():
    kernels = [kernel("silent"), kernel("stated", boundary="zeros", stride=2)]
    deciding = {"grid": 4, "stride": 1, "groups": 1, "boundary": "circular"}
    for options, silent, stated in (
        (
            {"grid": 4},
            "stride dilation groups padding boundary transposed",
            "dilation groups padding transposed",
        ),
        ({"groups": 1}, "grid stride dilation padding boundary transposed", "grid"),
        (deciding, "", ""),
    ):
        layers, _ = with_geometry(kernels, Options(geometry=options))
        assert [" ".join(layer.unknown) for layer in layers] == [silent, stated]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_folded_norm_multiplies_the_outputs_of_the_layer(groups, transposed, rng):
    outputs = 2 * groups if transposed else 4
    factors = rng.standard_normal(outputs)
    one = kernel("k", (4, 2, 3), lambda: factors)
    options = {"grid": 5, "groups": groups, "transposed": transposed}
    plain, folded = (
        dense_matrix(layer.load().weight, layer.geometry)
        for fold in (False, True)
        for layer in with_geometry([one], Options(geometry=options, fold=fold))[0]
    )
    each = np.repeat(factors, len(plain) // outputs)
    np.testing.assert_allclose(folded, each[:, None] * plain)
