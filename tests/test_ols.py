import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from numpy.typing import NDArray
from scipy import stats

from shopskill_lib import ols
from shopskill_lib.errors import DesignError

FloatArray = NDArray[np.float64]
NAMES = ("x", "y", "z")

# By hand. Rows (x, y | d): (1,0|1) (1,0|0) (0,1|1) (0,1|1) (1,1|1) (1,1|0).
# X'X = [[4, 2], [2, 4]], its inverse = [[4, -2], [-2, 4]] / 12, X'd = [2, 3].
# beta = [(8 - 6) / 12, (-4 + 12) / 12] = [1/6, 2/3]. Fitted: 1/6 1/6 2/3 2/3 5/6 5/6.
# Residuals: 5/6 -1/6 1/3 1/3 1/6 -5/6; SSR = (25 + 1 + 4 + 4 + 1 + 25) / 36 = 5/3; s2 = (5/3) / 4 = 5/12.
# Leverage: x or y alone 1/3; both (4 - 2 - 2 + 4) / 12 = 1/3. HC3 weights w = (e / (2/3))**2:
# 25/16 1/16 1/4 1/4 1/16 25/16. X'WX = [[13/4, 13/8], [13/8, 17/8]].
# (X'X)^-1 X'WX (X'X)^-1 = [[2, -1], [-1, 2]]/6 @ X'WX @ [[2, -1], [-1, 2]]/6 = [[69, -21], [-21, 42]]/288.
HAND_X = np.array([[1, 0], [1, 0], [0, 1], [0, 1], [1, 1], [1, 1]])
HAND_D = np.array([1.0, 0, 1, 1, 1, 0])


def simulated(n: int = 120, seed: int = 0) -> tuple[FloatArray, NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    return rng.integers(-1, 2, n) / rng.integers(1, 4, n), rng.integers(0, 2, (n, 3))


def reference(delta: FloatArray, X: NDArray[np.int64]) -> smf.ols:
    """The same regression by a formula, named data and statsmodels' own covariance options."""
    return smf.ols("d ~ 0 + x + y + z", pd.DataFrame({"d": delta} | dict(zip(NAMES, X.T, strict=True))))


def test_two_factors_by_hand() -> None:
    fit = ols.fit(HAND_D, HAND_X, ["x", "y"], np.arange(6))
    assert fit.params == pytest.approx([1 / 6, 2 / 3], abs=1e-12)
    assert fit.bse_classical == pytest.approx(np.sqrt([5 / 12 / 3, 5 / 12 / 3]), abs=1e-12)
    assert fit.cov_params == pytest.approx(np.array([[69, -21], [-21, 42]]) / 288, abs=1e-12)
    assert (fit.cov_type, fit.df_inference, fit.nobs) == ("HC3", 4.0, 6)
    assert fit.fvalue == pytest.approx((7 / 3 / 2) / (5 / 12), abs=1e-12)  # explained d'd - SSR = 4 - 5/3
    gain, error, low, high = fit.difference("y", "x")
    assert gain == pytest.approx(1 / 2, abs=1e-12)
    assert error == pytest.approx(np.sqrt((69 + 42 + 42) / 288), abs=1e-12)
    assert (low + high) / 2 == pytest.approx(gain)
    assert (high - low) / 2 == pytest.approx(2.7764451 * error)  # t quantile of 4 degrees of freedom


def test_I16_no_intercept_and_no_centering() -> None:
    """A constant shift of all differences moves the coefficients: an intercept or centering would absorb it."""
    delta, X = simulated()
    shift = np.linalg.lstsq(X.astype(float), np.full(len(X), 0.25))[0]
    moved = ols.fit(delta + 0.25, X, NAMES, np.arange(120)).params - ols.fit(delta, X, NAMES, np.arange(120)).params
    assert moved == pytest.approx(shift, abs=1e-12)
    assert abs(shift).max() > 0.05


def test_classical_and_hc3_errors_equal_statsmodels() -> None:
    delta, X = simulated()
    fit = ols.fit(delta, X, NAMES, np.arange(120))
    classical = reference(delta, X).fit()
    robust = reference(delta, X).fit(cov_type="HC3", use_t=True)
    assert fit.params == pytest.approx(classical.params.to_numpy(), abs=1e-10)
    assert fit.bse_classical == pytest.approx(classical.bse.to_numpy(), abs=1e-10)
    assert fit.bse == pytest.approx(robust.bse.to_numpy(), abs=1e-10)
    assert fit.pvalues == pytest.approx(robust.pvalues.to_numpy(), abs=1e-10)
    assert fit.conf_int() == pytest.approx(robust.conf_int().to_numpy(), abs=1e-10)
    assert (fit.fvalue, fit.f_pvalue) == pytest.approx((classical.fvalue, classical.f_pvalue), abs=1e-10)
    assert fit.wald_pvalue == pytest.approx(float(robust.wald_test(np.eye(3), scalar=True).pvalue), abs=1e-10)


def test_hc3_errors_equal_their_formula() -> None:
    delta, X = simulated()
    bread = np.linalg.inv(X.T @ X)
    residuals = delta - X @ bread @ X.T @ delta
    leverage = np.diag(X @ bread @ X.T)
    meat = X.T @ np.diag((residuals / (1 - leverage)) ** 2) @ X
    fit = ols.fit(delta, X, NAMES, np.arange(120))
    assert fit.cov_params == pytest.approx(bread @ meat @ bread, abs=1e-10)


def test_several_rows_a_task_are_clustered_as_statsmodels_and_the_formula_do() -> None:
    delta, X = simulated()
    tasks = np.repeat(np.arange(40), 3)
    fit = ols.fit(delta, X, NAMES, tasks)
    robust = reference(delta, X).fit(cov_type="cluster", cov_kwds={"groups": tasks}, use_t=True)
    assert (fit.cov_type, fit.df_inference) == ("cluster", 39.0)
    assert fit.bse == pytest.approx(robust.bse.to_numpy(), abs=1e-10)
    assert fit.pvalues == pytest.approx(robust.pvalues.to_numpy(), abs=1e-10)
    assert fit.conf_int() == pytest.approx(robust.conf_int().to_numpy(), abs=1e-10)

    bread = np.linalg.inv(X.T @ X)
    scores = X * (delta - X @ bread @ X.T @ delta)[:, None]
    sums = np.array([scores[tasks == task].sum(axis=0) for task in range(40)])
    correction = 40 / 39 * 119 / 117
    assert fit.cov_params == pytest.approx(correction * bread @ (sums.T @ sums) @ bread, abs=1e-10)


def test_clusters_need_not_be_adjacent_or_equal_in_size() -> None:
    delta, X = simulated()
    tasks = np.random.default_rng(1).integers(0, 30, 120)
    order = np.argsort(tasks, kind="stable")
    one, other = ols.fit(delta, X, NAMES, tasks), ols.fit(delta[order], X[order], NAMES, tasks[order])
    assert one.bse == pytest.approx(other.bse, abs=1e-12)


def test_an_interval_does_not_depend_on_the_one_read_before() -> None:
    delta, X = simulated()
    fit = ols.fit(delta, X, NAMES, np.arange(120))
    wide = fit.conf_int(0.05)
    narrow = fit.conf_int(0.1)
    assert (fit.conf_int(0.05) == ols.fit(delta, X, NAMES, np.arange(120)).conf_int(0.05)).all()
    assert ((wide[:, 0] < narrow[:, 0]) & (narrow[:, 1] < wide[:, 1])).all()
    half = stats.t.ppf(0.95, 117) * fit.bse
    assert narrow == pytest.approx(np.column_stack([fit.params - half, fit.params + half]))


def test_difference_uses_the_covariance() -> None:
    delta, X = simulated()
    fit = ols.fit(delta, X, NAMES, np.arange(120))
    test = reference(delta, X).fit(cov_type="HC3", use_t=True).t_test("y - x = 0")
    low, high = test.conf_int(alpha=0.1)[0]
    assert fit.difference("y", "x", alpha=0.1) == pytest.approx((test.effect[0], test.sd[0][0], low, high), abs=1e-10)
    assert fit.difference("x", "y")[0] == -fit.difference("y", "x")[0]


def test_a_row_that_determines_an_effect_alone_is_refused_with_the_factor() -> None:
    X = np.array([[1, 0], [1, 0], [1, 1], [0, 0], [1, 0]])
    with pytest.raises(DesignError, match=r"row 3 alone determines an effect \(only there is y shown\)"):
        ols.fit(np.array([1.0, 0, 1, 0, 1]), X, ["x", "y"], np.arange(5))


def test_one_task_alone_cannot_be_clustered() -> None:
    with pytest.raises(DesignError, match="all rows belong to one task"):
        ols.fit(HAND_D, HAND_X, ["x", "y"], np.zeros(6, dtype=np.int64))


@pytest.mark.parametrize("tasks", [np.arange(6), np.array([0, 0, 1, 1, 2, 2])])
def test_masks_without_full_rank_are_refused(tasks: NDArray[np.int64]) -> None:
    with pytest.raises(DesignError, match="rank 2 for 3 factors"):
        ols.fit(HAND_D, np.column_stack([HAND_X, HAND_X.sum(axis=1)]), NAMES, tasks)


def test_a_factor_that_one_task_alone_shows_is_refused_where_errors_are_clustered() -> None:
    """Its error by task would be 0 whatever the rewards, because its residuals sum to 0 within that task."""
    X = np.array([[1, 0], [0, 1], [0, 1], [1, 0], [0, 0], [1, 0]])
    with pytest.raises(DesignError, match="one task alone determines the effect of y"):
        ols.fit(HAND_D, X, ["x", "y"], np.array([0, 1, 1, 2, 2, 3]))
    assert ols.fit(HAND_D, X, ["x", "y"], np.array([0, 1, 2, 2, 1, 3])).bse[1] > 0


def test_differences_that_are_all_zero_say_nothing_against_zero() -> None:
    fit = ols.fit(np.zeros(6), HAND_X, ["x", "y"], np.arange(6))
    assert fit.params.tolist() == fit.bse.tolist() == [0, 0]
    assert fit.pvalues.tolist() == [1, 1]
    assert (fit.fvalue, fit.f_pvalue, fit.wald_pvalue) == (0, 1, None)


def test_a_perfect_fit_is_certain_and_warns_of_nothing() -> None:
    fit = ols.fit(np.array([1.0, 1, 0, 0]), np.array([[1], [1], [0], [0]]), ["x"], np.arange(4))
    assert (fit.params[0], fit.bse[0], fit.pvalues[0]) == pytest.approx((1, 0, 0), abs=1e-12)
    assert (fit.fvalue, fit.f_pvalue) == (np.inf, 0)


def test_the_joint_test_with_too_few_clusters_is_left_out() -> None:
    """Two clusters give a covariance of rank one at most: a joint test of two coefficients cannot be made."""
    fit = ols.fit(HAND_D, HAND_X, ["x", "y"], np.array([0, 1, 0, 1, 0, 1]))
    assert fit.wald_pvalue is None
