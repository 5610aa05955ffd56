"""The paired-delta regression of METHOD M19 and its standard errors, fitted by statsmodels.

`R - B = C'beta + eps`: ordinary least squares, no intercept, no centering, main effects only (I16).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats
from statsmodels.regression.linear_model import OLS, RegressionResults, RegressionResultsWrapper

from shopskill_lib.errors import DesignError

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class OLSFit:
    """A fitted M19 model; attribute names are statsmodels'.

    Attributes:
        names: K factor ids, in column order.
        params: (K,) coefficients, in units of the outcome.
        cov_params: (K, K) covariance of the coefficients, of type `cov_type`.
        bse_classical: (K,) standard errors under equal variances.
        cov_type: "HC3", or "cluster" (by task) when a task has several rows.
        df_inference: degrees of freedom of the t intervals: rows - K, or tasks - 1 when clustered.
        nobs: rows.
        fvalue: classical F statistic of "all K coefficients are 0" (infinite when the masks explain every
            difference), `f_pvalue` its p-value.
        wald_pvalue: p-value of the same hypothesis with `cov_params`; None when that test cannot be made.
    """

    names: tuple[str, ...]
    params: FloatArray
    cov_params: FloatArray
    bse_classical: FloatArray
    cov_type: str
    df_inference: float
    nobs: int
    fvalue: float
    f_pvalue: float
    wald_pvalue: float | None

    @property
    def bse(self) -> FloatArray:
        """(K,) standard errors of type `cov_type`."""
        return np.sqrt(np.diag(self.cov_params))

    @property
    def pvalues(self) -> FloatArray:
        """(K,) two-sided p-values of single coefficients; 1 where coefficient and error are both 0."""
        return np.array([_two_sided(b, se, self.df_inference) for b, se in zip(self.params, self.bse, strict=True)])

    def conf_int(self, alpha: float = 0.05) -> FloatArray:
        """(K, 2) t intervals at level 1 - alpha."""
        half = stats.t.ppf(1 - alpha / 2, self.df_inference) * self.bse
        return np.column_stack([self.params - half, self.params + half])

    def difference(self, new: str, old: str, alpha: float = 0.05) -> tuple[float, float, float, float]:
        """Return the gain of a version over another (M21): estimate, standard error, interval ends."""
        i, j = self.names.index(new), self.names.index(old)
        estimate = float(self.params[i] - self.params[j])
        variance = self.cov_params[i, i] + self.cov_params[j, j] - 2 * self.cov_params[i, j]
        error = float(np.sqrt(max(variance, 0.0)))
        half = float(stats.t.ppf(1 - alpha / 2, self.df_inference)) * error
        return estimate, error, estimate - half, estimate + half

    def to_frame(self) -> pd.DataFrame:
        """One row a factor: coefficient, both standard errors, p-value, 95 % interval."""
        low, high = self.conf_int().T
        return pd.DataFrame(
            {
                "intervention_id": self.names,
                "coefficient": self.params,
                "std_error": self.bse,
                "std_error_classical": self.bse_classical,
                "p_value": self.pvalues,
                "ci_low": low,
                "ci_high": high,
            }
        )

    def summary(self) -> str:
        """One printed paragraph and a table."""
        head = (
            f"OLS without intercept, {self.nobs} pairs, {len(self.names)} factors, {self.cov_type} errors; "
            f"all coefficients 0: F = {self.fvalue:.2f}, p = {self.f_pvalue:.2g}"
        )
        return head + "\n" + self.to_frame().round(4).to_string(index=False)

    def __str__(self) -> str:
        return self.summary()


def _two_sided(estimate: float, error: float, df: float) -> float:
    """Two-sided t p-value; an estimate of exactly 0 with error 0 says nothing against 0."""
    if error == 0.0:
        return 1.0 if estimate == 0.0 else 0.0
    return float(2 * stats.t.sf(abs(estimate) / error, df))


def fit(
    delta: FloatArray, masks: NDArray[np.int64] | FloatArray, names: Sequence[str], tasks: NDArray[np.int64]
) -> OLSFit:
    """Fit M19 to (n,) paired differences and (n, K) masks of full column rank.

    Args:
        delta: (n,) masked minus bare outcome.
        masks: (n, K) 0/1, every column shown at least once; checks add columns of other numbers.
        names: K factor ids.
        tasks: (n,) task number of every row; errors are clustered by task when one repeats, HC3 otherwise.

    Raises:
        DesignError: the masks have not full rank, a row determines a coefficient alone (leverage 1), or one task
            does where errors are clustered.
    """
    X = masks.astype(np.float64)
    _refuse_lower_rank(X)
    ordinary = OLS(delta, X).fit()
    n_tasks = len(np.unique(tasks))
    if n_tasks < len(tasks):
        if n_tasks < 2:
            raise DesignError(
                "all rows belong to one task",
                where="task_id",
                allowed="at least two tasks, to cluster the standard errors by task",
                todo="add tasks",
            )
        _refuse_one_task_alone(X, names, tasks)
        robust = ordinary.get_robustcov_results("cluster", groups=tasks, use_t=True)
        cov_type, df_inference = "cluster", float(n_tasks - 1)
    else:
        _refuse_leverage_one(X, names)
        robust = ordinary.get_robustcov_results("HC3", use_t=True)
        cov_type, df_inference = "HC3", float(len(delta) - X.shape[1])
    fvalue, f_pvalue = _joint(ordinary)
    return OLSFit(
        names=tuple(names),
        params=np.asarray(ordinary.params),
        cov_params=np.asarray(robust.cov_params()),
        bse_classical=np.asarray(ordinary.bse),
        cov_type=cov_type,
        df_inference=df_inference,
        nobs=len(delta),
        fvalue=fvalue,
        f_pvalue=f_pvalue,
        wald_pvalue=_wald_pvalue(robust),
    )


def _joint(ordinary: RegressionResultsWrapper) -> tuple[float, float]:
    """Classical F test that all coefficients are 0; (0, 1) without any difference, (inf, 0) without residuals."""
    if not np.any(ordinary.model.endog):
        return 0.0, 1.0
    if ordinary.ssr <= 1e-24 * ordinary.uncentered_tss:
        return float("inf"), 0.0
    return float(ordinary.fvalue), float(ordinary.f_pvalue)


def _wald_pvalue(robust: RegressionResults) -> float | None:
    """Joint test with the robust covariance, where that covariance can be inverted."""
    covariance = np.asarray(robust.cov_params())
    if np.linalg.matrix_rank(covariance) < len(covariance):
        return None
    return float(robust.f_test(np.eye(len(covariance))).pvalue)


def _refuse_lower_rank(X: FloatArray) -> None:
    """Refuse masks under which no coefficient has a value of its own."""
    rank = int(np.linalg.matrix_rank(X.T @ X, hermitian=True))
    if rank < X.shape[1]:
        raise DesignError(
            f"the masks have rank {rank} for {X.shape[1]} factors",
            where="masks",
            allowed="masks of full column rank (M20)",
            todo="leave out the factors that the design report names as aliased, or draw masks by M17",
        )


def _refuse_one_task_alone(X: FloatArray, names: Sequence[str], tasks: NDArray[np.int64]) -> None:
    """Refuse factors that one task alone shows: their residuals sum to 0 there, and so would their errors."""
    alone = [name for name, column in zip(names, X.T, strict=True) if len(np.unique(tasks[column > 0])) < 2]
    if alone:
        raise DesignError(
            f"one task alone determines the effect of {', '.join(alone)}",
            where="masks",
            allowed="every factor shown in several tasks, where errors are clustered by task",
            todo="add tasks, or leave out the factor",
        )


def _refuse_leverage_one(X: FloatArray, names: Sequence[str]) -> None:
    """Refuse rows that alone determine a coefficient: HC3 divides by 1 - leverage."""
    leverage = np.einsum("ij,jk,ik->i", X, np.linalg.inv(X.T @ X), X, optimize=True)
    alone = np.flatnonzero(leverage > 1 - 1e-10)
    if alone.size:
        factors = [name for name, column in zip(names, X.T, strict=True) if column[alone[0]] and column.sum() == 1]
        raise DesignError(
            f"row {alone[0] + 1} alone determines an effect"
            + (f" (only there is {', '.join(factors)} shown)" if factors else ""),
            where="masks",
            allowed="every factor shown in several rows",
            todo="add pairs, or leave out the factor",
        )
