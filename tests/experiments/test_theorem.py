"""The theorem is judged by the full matrix, and a wrong value would be seen."""

import numpy as np
import pytest

from experiments import theorem
from experiments.claims import exit_code
from experiments.options import Options
from experiments.theorem import Case

CASES = (
    Case(2, 3, (3, 2), (4, 5)),
    Case(1, 1, (3,), (20,), (2.0, 7.0, -1.0)),
    Case(2, 2, (3, 3), (2, 4)),
)


def test_the_claims_hold_on_small_layers(tmp_path, monkeypatch):
    monkeypatch.setattr(theorem, "CASES", {"small": CASES})
    claims = theorem.run(Options(out=tmp_path))
    assert [claim.holds for claim in claims] == [True] * 5
    assert "off by" in claims[0].note
    assert (tmp_path / "theorem" / "theorem.png").exists()


@pytest.mark.parametrize(
    ("wrong", "broken"),
    [
        (lambda values: values * (1 + 1e-12), 1),  # ours in double precision
        (lambda values: values + np.float32(1e-4), 2),
    ],
)
def test_wrong_values_break_the_claim(tmp_path, monkeypatch, wrong, broken):
    right = theorem.cs.singular_values
    monkeypatch.setattr(theorem, "CASES", {"small": CASES})
    monkeypatch.setattr(
        theorem.cs, "singular_values", lambda *given: wrong(right(*given))
    )
    claims = theorem.run(Options(out=tmp_path))
    assert claims[0].holds
    assert not claims[broken].holds
    assert exit_code(claims) == 1


def test_the_paper_s_lines_are_numpy_s_fft2(rng):
    weight = rng.standard_normal((3, 2, 3, 4))
    kernel = weight.transpose(2, 3, 0, 1)
    transforms = np.fft.fft2(kernel, (6, 5), axes=[0, 1])
    want = np.linalg.svd(transforms, compute_uv=False)
    np.testing.assert_array_equal(theorem.paper_values(weight, (6, 5)), want)


@pytest.mark.parametrize(
    ("grid", "alone"), [((4, 6), 4), ((4, 5), 2), ((3, 5), 1), ((8,), 2)]
)
def test_pairs_are_counted_by_frequency(grid, alone):
    case = Case(2, 3, (1,) * len(grid), grid)
    assert theorem.pairs(case) == 2 * (np.prod(grid) + alone) / 2


def test_the_paper_s_own_tests_are_among_the_cases():
    for cases in theorem.CASES.values():
        assert set(theorem.PAPER_TESTS) <= set(cases)
