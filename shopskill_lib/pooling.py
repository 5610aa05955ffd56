"""Several gates of the same chunks as one analysis: seeds, rounds, checkpoints (METHOD section 13).

One row a pair, over all gates; errors are clustered by task, because gates of the same tasks share their bare runs and
their tasks. Nothing is selected here: a pooled label stands beside the gates' own decisions (M23).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from shopskill_lib import drift, inference, looks, ols, resampling
from shopskill_lib.checks import holm
from shopskill_lib.comparison import PRIMARY
from shopskill_lib.errors import DesignError, InputError
from shopskill_lib.files import read_json
from shopskill_lib.observations import Observations, plain_rows, read_again
from shopskill_lib.settings import Settings
from shopskill_lib.text import task_key

FloatArray = NDArray[np.float64]

LEVEL = 0.05

SAME = (
    "language", "catalogue", "catalogue_seed", "n_products", "splits", "persona", "max_steps", "prompts_dir",
    "policy_temperature", "policy_max_tokens",
)  # fmt: skip
"""Settings that decide what a task, a prompt and an answer are: gates that differ in one have no common effect."""


@dataclass(frozen=True, slots=True)
class Member:
    """One gate among those that are pooled.

    Attributes:
        name: what tables and figures call it.
        pairs: its checked pairs.
        chunks: K keys of its columns, the text's hash where the run has one and the id otherwise.
        selected: keys of what its rule selected.
        settings: of its run; None for pairs without one.
        root: run folder in which looks at the test tasks are counted.
    """

    name: str
    pairs: Observations
    chunks: tuple[str, ...]
    selected: tuple[str, ...]
    settings: Settings | None
    root: Path


@dataclass(frozen=True, slots=True)
class Pool:
    """Gates of the same chunks, judged together.

    Attributes:
        members: the G gates, in the order given.
        chunks: K keys that several gates measured, in order of first appearance; `titles` what a reader calls them.
        pooled: fit of one common effect a chunk on all pairs; chunks of a single gate are columns too.
        single: fit of every gate's own effects, all at once; its names are `gate chunk`.
        joint: the pooled effects of all columns judged together.
        heterogeneity: one row a chunk: F test that its gates agree; `p_agree` is Holm's over the chunks.
        p_agree: p-value of the test that all chunks agree over their gates; None where it cannot be made.
        drift: one row a chunk measured at several checkpoints (see `drift.over`); empty with one checkpoint.
        regression: one row a gate: its selected chunks there and in the other gates.
        test_looks: looks at the test tasks, by run folder.
        notes: what must be printed beside the tables.
    """

    members: tuple[Member, ...]
    chunks: tuple[str, ...]
    titles: dict[str, str]
    pooled: ols.OLSFit
    single: ols.OLSFit
    joint: inference.Inference
    heterogeneity: pd.DataFrame
    p_agree: float | None
    drift: pd.DataFrame
    regression: pd.DataFrame
    test_looks: dict[str, int]
    notes: tuple[str, ...]

    @property
    def simulated(self) -> bool:
        """Whether the rewards are simulated."""
        return self.members[0].pairs.simulated

    @property
    def checkpoints(self) -> tuple[str, ...]:
        """Checkpoints in the order of the gates."""
        return tuple(dict.fromkeys(member.pairs.checkpoint for member in self.members))

    def to_frame(self) -> pd.DataFrame:
        """One row a chunk that several gates measured, best pooled estimate first."""
        fit = self.pooled.to_frame().rename(columns={"intervention_id": "chunk"})
        fit = fit.assign(label=self.joint.labels, shrunken=self.joint.shrinkage.params)
        fit["simultaneous_low"], fit["simultaneous_high"] = self.joint.simultaneous.T
        table = fit.drop(columns="std_error_classical").merge(self.heterogeneity, on="chunk")
        table.insert(0, "title", table["chunk"].map(self.titles))
        return table.sort_values("coefficient", ascending=False, kind="stable").reset_index(drop=True)

    def by_gate(self) -> pd.DataFrame:
        """One row a gate and chunk: its own estimate with its 95 % interval."""
        low, high = self.single.conf_int().T
        columns = [(member, chunk) for member in self.members for chunk in _shown(member)]
        table = pd.DataFrame(
            {
                "gate": [member.name for member, _ in columns],
                "checkpoint": [member.pairs.checkpoint for member, _ in columns],
                "chunk": [chunk for _, chunk in columns],
                "title": [self.titles[chunk] for _, chunk in columns],
                "coefficient": self.single.params,
                "ci_low": low,
                "ci_high": high,
                "selected": [chunk in member.selected for member, chunk in columns],
            }
        )
        return table[table["chunk"].isin(self.chunks)].reset_index(drop=True)

    def verdict(self) -> str:
        """Say what the gates support together, with its uncertainty."""
        table = self.to_frame()
        counts = ", ".join(f"{label} {int((table['label'] == label).sum())}" for label in ("keep", "drop", "undecided"))
        pairs = sum(len(member.pairs.task_ids) for member in self.members)
        agree = "cannot be tested" if self.p_agree is None else f"p = {self.p_agree:.2g}"
        apart = int((table["p_agree"] <= LEVEL).sum())
        lines = [
            f"{'simulated: ' if self.simulated else ''}{len(self.members)} gates, {pairs} pairs of {self._n_tasks()} "
            f"tasks, {len(self.chunks)} chunks in several gates: {counts} at a false discovery rate of "
            f"{inference.LEVEL:.0%}. Equal effects in all gates: {agree}; {apart} of {len(table)} chunks differ over "
            "their gates (Holm).",
            *map(_regression_sentence, plain_rows(self.regression)),
        ]
        if len(self.drift):
            ends = f"{self.checkpoints[0]} to {self.checkpoints[-1]}"
            lines.append(f"From checkpoint {ends}: {_counted(self.drift['drift_label'])}.")
        if len(self.checkpoints) > 2 and len(self.drift):
            told = _counted(self.drift["trend_label"])
            lines.append(f"Straight line through {len(self.checkpoints)} checkpoints: {told}.")
        looked = ", ".join(f"{name} {count}" for name, count in self.test_looks.items())
        lines.append(f"Looks at test tasks over these runs: {sum(self.test_looks.values())} ({looked}).")
        return "\n".join(lines)

    def summary(self) -> str:
        """The tables, the verdict and the notes."""
        tables = {"pooled effects": self.to_frame(), "drift over checkpoints": self.drift}
        parts = [
            f"{name}\n{table.assign(chunk=table['chunk'].str[:20]).round(4).to_string(index=False)}"
            for name, table in tables.items()
            if len(table)
        ]
        return "\n".join([*parts, self.verdict(), *(f"note: {note}" for note in self.notes)])

    def __str__(self) -> str:
        return self.summary()

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain values; missing is None."""
        return {
            "simulated": self.simulated,
            "gates": [
                {"name": member.name, "sha256": member.pairs.sha256, "checkpoint": member.pairs.checkpoint}
                for member in self.members
            ],
            "pooled": plain_rows(self.to_frame()),
            "by_gate": plain_rows(self.by_gate()),
            "p_agree": self.p_agree,
            "drift": plain_rows(self.drift),
            "regression": plain_rows(self.regression),
            "test_looks": self.test_looks,
            "verdict": self.verdict(),
            "notes": list(self.notes),
        }

    def _n_tasks(self) -> int:
        return len({task_key(name) for member in self.members for name in member.pairs.task_ids})


def read_member(folder: Path) -> Member:
    """Read a gate from a run folder, or from the folder of one of its online rounds.

    Raises:
        InputError: the folder holds no frozen gate, or a file is damaged.
        MissingError, DesignError: its pairs cannot be used.
    """
    root = folder.resolve().parents[1] if folder.resolve().parent.name == "online" else folder
    settings = Settings.of_run(root) if (root / "params.json").exists() else None
    named = folder / "interventions.json"
    pairs = read_again(folder)
    record = read_json(folder / "gate_a.json")
    hashes = _hashes(named) if named.exists() else {}
    keys = {factor: hashes.get(factor, factor) for factor in pairs.factors}
    if record.get("source", {}).get("sha256") != pairs.sha256:
        raise InputError(
            "the frozen gate rests on other pairs than lie beside it",
            where=str(folder),
            allowed="gate_a.json and observations.csv of one gate",
            todo="run 03_gate_a there again",
        )
    place = folder.resolve()
    name = place.name if root == folder else f"{place.parents[1].name} {place.name}"
    chosen = tuple(keys[factor] for factor in record["selected"])
    return Member(name, pairs, tuple(keys.values()), chosen, settings, root)


def _hashes(path: Path) -> dict[str, str]:
    """Return id -> hash of the text, for the columns of a gate that have one."""
    items = read_json(path)
    rows = items if isinstance(items, list) else items.get("interventions", [])
    return {row["intervention_id"]: row["text_sha256"] for row in rows if row.get("text_sha256")}


def pool(members: Sequence[Member], *, resamples: int = 2000, analysis_seed: int = 0) -> Pool:
    """Pool gates of the same chunks.

    Args:
        members: at least two gates, checkpoints in their order of training.
        resamples: task-level bootstrap resamples of the pooled fit.
        analysis_seed: of the bootstrap.

    Raises:
        InputError: the gates are not comparable, or have no chunk in common.
        DesignError: the stacked masks have not full rank.
    """
    _refuse_unlike(members)
    resampling.refuse_draws(resamples, analysis_seed)
    measured = [chunk for member in members for chunk in _shown(member)]
    chunks = tuple(chunk for chunk, count in Counter(measured).items() if count > 1)
    if not chunks:
        raise InputError(
            "no chunk was measured by two of the gates",
            where=", ".join(member.name for member in members),
            allowed="gates of the same texts",
            todo="pool gates of one draft, or a run with its online rounds",
        )
    delta, tasks = np.concatenate([member.pairs.delta(PRIMARY) for member in members]), _tasks(members)
    masks, names = _stack(members, lambda _number, _member, chunk: chunk)
    pooled = ols.fit(delta, masks, names, tasks)
    single = ols.fit(delta, *_stack(members, lambda number, _, chunk: f"{number} {chunk}"), tasks)
    drawn = resampling.bootstrap_coefficients(delta, masks, tasks, resamples, analysis_seed)
    if len(drawn) < resamples / 2:
        raise DesignError(
            f"only {len(drawn)} of {resamples} resamples of the tasks can be fitted",
            where="pooled bootstrap",
            allowed="enough tasks",
            todo="pool gates of more tasks",
        )
    table, p_agree = _heterogeneity(members, chunks, single)
    return Pool(
        members=tuple(members),
        chunks=chunks,
        titles=_titles(members),
        pooled=pooled,
        single=single,
        joint=inference.infer(pooled.params, pooled.cov_params, pooled.pvalues, drawn),
        heterogeneity=table,
        p_agree=p_agree,
        drift=_drift(members, delta, tasks),
        regression=_regression(members, chunks, single),
        test_looks={member.root.resolve().name: looks.taken(member.root, "gate_b.json") for member in members},
        notes=_notes(members, pooled),
    )


def _shown(member: Member) -> list[str]:
    """Return the keys of the columns that some row shows."""
    return [chunk for chunk, flag in zip(member.chunks, member.pairs.masks.sum(axis=0), strict=True) if flag]


def _titles(members: Sequence[Member]) -> dict[str, str]:
    """Return what a reader calls each chunk."""
    return {
        chunk: item.title or item.intervention_id
        for member in reversed(members)
        for chunk, item in zip(member.chunks, member.pairs.interventions, strict=True)
    }


def _tasks(members: Sequence[Member]) -> NDArray[np.int64]:
    """Number the tasks of all rows; the same task has one number in all gates (M2)."""
    keys = [task_key(name) for member in members for name in member.pairs.task_ids]
    return np.unique(keys, return_inverse=True)[1].astype(np.int64)


def _stack(
    members: Sequence[Member], name: Callable[[int, Member, str], str]
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the masks of all gates, one below the other, and their columns; 0 where a gate has no such column.

    Args:
        members: the gates.
        name: (number of the gate, gate, chunk) -> column; equal names make one column.
    """
    columns = [[name(number, member, chunk) for chunk in _shown(member)] for number, member in enumerate(members)]
    names = tuple(dict.fromkeys(column for own in columns for column in own))
    parts = []
    for member, own in zip(members, columns, strict=True):
        part = np.zeros((len(member.pairs.masks), len(names)), dtype=np.int64)
        part[:, [names.index(column) for column in own]] = member.pairs.masks[:, member.pairs.masks.any(axis=0)]
        parts.append(part)
    return np.concatenate(parts), names


def _heterogeneity(
    members: Sequence[Member], chunks: Sequence[str], single: ols.OLSFit
) -> tuple[pd.DataFrame, float | None]:
    """Test that a chunk's effects are the same in all gates that measured it, chunk by chunk and for all at once."""
    contrasts = {chunk: _contrasts(members, chunk, single.names) for chunk in chunks}
    tests = [_wald(rows, single) for rows in contrasts.values()]
    known = [p for p, _ in tests if p is not None]
    adjusted = iter(holm(np.array(known)) if known else ())
    values = [None if p is None else float(next(adjusted)) for p, _ in tests]
    table = pd.DataFrame({"chunk": chunks, "gates": [len(rows) + 1 for rows in contrasts.values()]})
    table["i_squared"] = [share for _, share in tests]
    table["p_agree"] = values
    return table, _wald(np.concatenate(list(contrasts.values())), single)[0]


def _contrasts(members: Sequence[Member], chunk: str, names: Sequence[str]) -> FloatArray:
    """Return (gates - 1, columns) differences of a chunk's effects from its first gate's."""
    places = [names.index(f"{number} {chunk}") for number, member in enumerate(members) if chunk in _shown(member)]
    rows = np.zeros((len(places) - 1, len(names)))
    rows[:, places[0]] = -1.0
    rows[np.arange(len(places) - 1), places[1:]] = 1.0
    return rows


def _wald(contrasts: FloatArray, fit: ols.OLSFit) -> tuple[float | None, float | None]:
    """Return p of the F test that all contrasts are 0, and the share of their spread that is no noise (I squared).

    None where the covariance of the contrasts cannot be inverted.
    """
    covariance = contrasts @ fit.cov_params @ contrasts.T
    if np.linalg.matrix_rank(covariance, hermitian=True) < len(contrasts):
        return None, None
    estimate = contrasts @ fit.params
    q = float(estimate @ np.linalg.solve(covariance, estimate))
    share = max(0.0, 1 - len(contrasts) / q) if q > 0 else 0.0
    return float(stats.f.sf(q / len(contrasts), len(contrasts), fit.df_inference)), share


def _drift(members: Sequence[Member], delta: FloatArray, tasks: NDArray[np.int64]) -> pd.DataFrame:
    """Compare effects over the checkpoints, in their order; every checkpoint's gates are pooled (see `drift`)."""
    points = list(dict.fromkeys(member.pairs.checkpoint for member in members))
    masks, names = _stack(members, lambda _, member, chunk: f"{points.index(member.pairs.checkpoint)} {chunk}")
    table, titles = drift.over(delta, masks, names, tasks, len(points)), _titles(members)
    table.insert(0, "title", table["chunk"].map(titles))
    return table


def _regression(members: Sequence[Member], chunks: Sequence[str], single: ols.OLSFit) -> pd.DataFrame:
    """Compare what each gate's selected chunks sum to there with what they sum to in the other gates."""
    columns = ["gate", "selected", "sum_there", "sum_elsewhere", "change", "change_low", "change_high"]
    half, rows = float(stats.t.ppf(1 - LEVEL / 2, single.df_inference)), []
    for number, member in enumerate(members):
        chosen = [chunk for chunk in member.selected if chunk in chunks]
        there, elsewhere = np.zeros(len(single.names)), np.zeros(len(single.names))
        for chunk in chosen:
            there[single.names.index(f"{number} {chunk}")] = 1.0
            others = [k for k, other in enumerate(members) if k != number and chunk in _shown(other)]
            for k in others:
                elsewhere[single.names.index(f"{k} {chunk}")] = 1.0 / len(others)
        weights = elsewhere - there
        change = float(weights @ single.params)
        error = max(float(weights @ single.cov_params @ weights), 0.0) ** 0.5
        sums = float(there @ single.params), float(elsewhere @ single.params)
        rows.append((member.name, len(chosen), *sums, change, change - half * error, change + half * error))
    return pd.DataFrame(rows, columns=columns)


def _counted(labels: "pd.Series[str]") -> str:
    return ", ".join(f"{word} {count}" for word, count in labels.value_counts().items())


def _regression_sentence(row: dict[str, Any]) -> str:
    """Say how a gate's selection fares in the other gates."""
    return (
        f"The {row['selected']} selected chunks of {row['gate']} that others measured sum to {row['sum_there']:+.3f} "
        f"there and {row['sum_elsewhere']:+.3f} elsewhere: {row['change']:+.3f} (95 % {row['change_low']:+.3f} to "
        f"{row['change_high']:+.3f})."
    )


def _notes(members: Sequence[Member], pooled: ols.OLSFit) -> tuple[str, ...]:
    """Say what the pooled figures rest on."""
    tasks = [set(map(task_key, member.pairs.task_ids)) for member in members]
    shared = len(set.union(*tasks)) < sum(map(len, tasks))
    notes = [note for member in members for note in member.pairs.notes]
    if shared:
        notes.append(
            "gates share tasks and may share bare runs: errors are clustered by task, and a selection's luck with a "
            "shared bare run stays in the other gates' figures"
        )
    unknown = [member.name for member in members if member.settings is None]
    if unknown:
        notes.append(f"no params.json for {', '.join(unknown)}: that tasks, prompts and shop are the same is not known")
    unnamed = [member.name for member in members if not member.pairs.checkpoint]
    if unnamed:
        notes.append(f"the pairs of {', '.join(unnamed)} name no checkpoint and are taken as one")
    return (*dict.fromkeys(notes), f"pooled errors: {pooled.cov_type}; a label here selects nothing (M23)")


def _refuse_unlike(members: Sequence[Member]) -> None:
    """Refuse gates that have no common effect, saying why."""
    names = [member.name for member in members]
    files = [member.pairs.sha256 for member in members]
    twice = [name for name, digest in zip(names, files, strict=True) if files.count(digest) > 1]
    kinds = {member.pairs.simulated for member in members}
    problems = [
        (len(members) < 2, f"{len(members)} gate is given", "at least two gates"),
        (bool(twice), f"{' and '.join(twice)} hold the same pairs", "every gate once"),
        (len(set(names)) < len(names), "two gates have the same name", "folders of different names"),
        (len(kinds) > 1, "some gates are simulated and some are not", "gates of one kind"),
        *_unlike_settings(members),
        *_unlike_texts(members),
    ]
    for wrong, found, allowed in problems:
        if wrong:
            raise InputError(found, where=", ".join(names), allowed=allowed, todo="pool what is comparable only")


def _unlike_settings(members: Sequence[Member]) -> list[tuple[bool, str, str]]:
    """Return the settings in which runs differ that decide what a reward means."""
    known = [(member.name, member.settings) for member in members if member.settings is not None]
    found = []
    for setting in SAME:
        values = {name: getattr(settings, setting) for name, settings in known}
        told = ", ".join(f"{value!r} in {name}" for name, value in values.items())
        found.append((len(set(values.values())) > 1, f"{setting} differs: {told}", f"one {setting}"))
    return found


def _unlike_texts(members: Sequence[Member]) -> list[tuple[bool, str, str]]:
    """Return the ids that stand for different texts."""
    texts: dict[str, str] = {}
    found = []
    for member in members:
        for factor, chunk in zip(member.pairs.factors, member.chunks, strict=True):
            other = texts.setdefault(factor, chunk) != chunk
            found.append((other, f"{factor} is another text in {member.name}", "one text an id"))
    return found
