"""A run is a folder that the notebooks fill one after the other: rollouts, papermill, provenance.

This is also the command `shopskill run`, kept apart from the others because papermill takes a second to import.
"""

import argparse
import importlib.metadata
import json
import logging
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import papermill

from shopskill_lib import cold_start, distil, interim, looks, protocol, report, workbench
from shopskill_lib.console import Parser, respond
from shopskill_lib.cycle import Rule
from shopskill_lib.errors import Interrupted, NotebookError, ParameterError
from shopskill_lib.files import read_bytes, write_bytes, write_json
from shopskill_lib.folders import folder, project
from shopskill_lib.parameters import Order, Scalar, notebooks, read_order
from shopskill_lib.rolloutset import Forecast
from shopskill_lib.spending import Purse, Tally, by_model
from shopskill_lib.stages import STAGES, rule_of
from shopskill_lib.workbench import Bench

COLD_START = ("cards.jsonl", "audit.jsonl", "analyses.json", "authored.jsonl")
"""What the cold start leaves in a run folder: the same for every seed of masks, so bought once."""

PACKAGES = ("jupyterlab", "papermill", "pandas", "numpy", "scipy", "statsmodels", "matplotlib", "seaborn", "nbval")


def execute(order: Order, purse: Purse) -> Path:
    """Roll out what each notebook needs, run the notebooks in the run folder, gather them in `report.html`.

    Rollouts happen in this process, where progress can be seen and Ctrl-C finishes what is in flight; the
    notebooks then find nothing owed.

    Raises:
        NotebookError: a notebook stopped; what was finished is kept.
        Interrupted: stopped on request, or the budget is reached; the same call goes on.
    """
    run_dir = folder(str(order.run_dir))
    for name, path in order.chosen.items():
        untested = name == "04_gate_b" and len(order.chosen) > 1 and not order.settings.skill
        if untested and not protocol.read_selected(run_dir).chunks:
            sys.stderr.write(f"{name}: left out, Gate A has selected no chunk and there is nothing to test\n")
            continue
        if not order.given.get("observations"):
            _work(order, name, purse)
        run_notebook(path, _place(order, name), run_dir, {**order.for_notebook(name), "run_dir": "."})
    if not order.settings.skill:
        _write_records(order)
    place = _place(order, list(order.chosen)[-1])
    done = [place / path.name for path in _up_to_last(order).values() if (place / path.name).exists()]
    report.write(f"shopskill run {run_dir.name}", done, place / "report.html")
    return place


def _place(order: Order, name: str) -> Path:
    """Return where a notebook's copy belongs: the run folder, or that of the online round which Gate B tests."""
    return order.run_dir / str(order.given.get("skill", "")) if name == "04_gate_b" else order.run_dir


def _up_to_last(order: Order) -> dict[str, Path]:
    """Return the notebooks up to the last one that ran: what comes after may belong to an earlier selection."""
    last = list(order.chosen)[-1]
    return {name: path for name, path in notebooks().items() if name <= last}


def pilot(order: Order, limit: int, purse: Purse) -> str:
    """Roll out the first tasks of training and of Gate A only, and say what that cost and what the rest will.

    The episodes are the full run's own: nothing is bought twice. No effect is estimated, so no look is taken. Before a
    draft has been compiled, Gate A's part is its bare episodes.
    """
    bench = workbench.paid_from(workbench.set_up(order.settings, folder(str(order.run_dir))), purse)
    train = [] if order.settings.draft else distil.plan_train(bench, cold_start.starting_skill(bench))
    val = protocol.plan_bare(bench, "val")
    name = "Gate A, bare half (the masked half needs a draft)"
    if order.settings.draft or (bench.folder / protocol.DRAFT).exists():
        bench = workbench.paid_from(protocol.set_up(order.settings, bench.folder), purse)
        protocol.freeze_design(bench)
        val, name = protocol.plan_gate_a(bench), "Gate A"
    _write_records(order)
    plans = {"training": train, name: val}
    lines: list[str] = []
    for plan in plans.values():
        first = set(list(dict.fromkeys(planned.task.task_id for planned in plan))[:limit])
        part = [planned for planned in plan if planned.task.task_id in first]
        lines += map(str, protocol.roll_out(bench, part, "pilot").values()) if part else []
    lines += [f"{name} in full: {protocol.foresee(bench, plan)}" for name, plan in plans.items() if plan]
    return "\n".join(lines)


def labels(order: Order, purse: Purse, give: Callable[[Bench, Rule], interim.Labels]) -> str:
    """Look at a declared stage of Gate A, or replicate the finished gate under new masks (see `interim`)."""
    bench = protocol.set_up(order.settings, folder(str(order.run_dir)))
    bench, rule = workbench.paid_from(bench, purse), rule_of(order.known | order.given)
    if not (order.run_dir / "params.json").exists():
        _write_records(order)
    return f"{give(bench, rule)}\nlooks at the validation tasks so far: {looks.taken(order.run_dir, 'gate_a.json')}"


def over_seeds(order: Order, seeds: Sequence[int], purse: Purse) -> str:
    """Run the notebooks once a seed of masks and analysis, bare episodes bought once, and compare the seeds."""
    first = order.run_dir / f"seed_{seeds[0]}"
    rows = []
    for seed in seeds:
        own: dict[str, Scalar] = {"mask_seed": seed, "analysis_seed": seed}
        if seed != seeds[0]:
            own["reuse_from"] = str(first)
            _take_over(first, order.run_dir / f"seed_{seed}")
        place = execute(replace(order, given=order.given | own, run_dir=order.run_dir / f"seed_{seed}"), purse)
        rows.append({"seed": seed, **_seed_row(place)})
    table = pd.DataFrame(rows).set_index("seed")
    write_bytes(order.run_dir / "seeds.csv", table.to_csv().encode())
    return f"{table.T.to_string()}\nreports: {order.run_dir}/seed_*/report.html"


def _take_over(first: Path, place: Path) -> None:
    """Copy the cold start of the first seed: masks and bootstrap have no part in it, and it has been paid for."""
    for name in COLD_START:
        if (first / name).exists() and not (place / name).exists():
            write_bytes(folder(str(place)) / name, read_bytes(first / name))


def _seed_row(place: Path) -> dict[str, object]:
    """Return what is compared over seeds: decisions, Gate B's difference, every coefficient."""
    gate, test = (_record(place / name) for name in ("gate_a.json", "gate_b.json"))
    row: dict[str, object] = {}
    if gate:
        row |= {
            "simulated": gate["simulated"],
            "selected": len(gate["selected"]),
            "joint p": round(gate["joint_test"]["p_value"], 4),
        }
    if test:
        reward = test["metrics"]["reward"]
        row |= {f"test {name}": round(reward[name], 4) for name in ("delta", "ci_low", "ci_high")}
    for factor in gate["factors"] if gate else ():
        star = "*" if factor["status"] == "selected" else ""
        row[factor["intervention_id"]] = "-" if factor["coefficient"] is None else f"{factor['coefficient']:+.3f}{star}"
    return row


def _record(path: Path) -> dict[str, Any]:
    """Read a frozen record; empty when there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _write_records(order: Order) -> None:
    """Write what the run was asked for and what it was made with."""
    write_json(order.run_dir / "params.json", order.to_json())
    write_json(order.run_dir / "provenance.json", _provenance())


def _work(order: Order, name: str, purse: Purse) -> None:
    """Do what a notebook rests on: what it will cost said before, what it has cost beside that after."""
    stage = STAGES[name]
    bench = workbench.paid_from(stage.set_up(order.settings, order.run_dir), purse)
    forecast, before = stage.forecast(bench), by_model(order.run_dir)
    sys.stderr.write(f"{name}: {stage.foresee(bench)}\n")
    if not (order.run_dir / "params.json").exists():
        _write_records(order)
    try:
        said = stage.work(bench, order.known | order.given)
    except Interrupted as stopped:
        if not purse.reached:
            raise
        later = "".join(f", then {other}" for other in order.chosen if other > name)
        found = f"{stopped.found}. Owed in {name}: {stage.foresee(bench)}{later}"
        raise Interrupted(found, where=stopped.where, allowed=stopped.allowed, todo=stopped.todo) from stopped
    sys.stderr.write(f"{said}\n" if isinstance(said, str) else "")
    now = by_model(order.run_dir)
    label = "simulated " if bench.agent.model.identity.simulated else ""
    sys.stderr.write(
        _outcome(f"{label}{name}", forecast, now["policy"] - before["policy"], now["author"] - before["author"])
    )


def _outcome(name: str, forecast: Forecast | None, policy: Tally, author: Tally) -> str:
    """Return the line that compares a stage's forecast with what it has cost; "" when it has asked nobody."""
    parts = [f"policy {forecast.against(policy)}"] if forecast is not None and policy.calls else []
    parts += [f"author: no forecast, was {author}"] if author.calls else []
    return f"{name}: {'; '.join(parts)}\n" if parts else ""


def run_notebook(notebook: Path, place: Path, run_dir: Path, parameters: Mapping[str, Scalar]) -> None:
    """Execute one notebook with the run folder as its working folder; the executed copy stays in its place.

    A copy that stopped is kept beside the last good one, under another name. The kernel is killed when it is done: it
    holds nothing, and its sockets may abort with a message of their own where it leaves in its own time.
    """
    stopped = place / f"{notebook.stem}.stopped.ipynb"
    logging.getLogger("papermill").setLevel(logging.CRITICAL)  # what it would say of an error is said below
    try:
        papermill.execute_notebook(
            str(notebook),
            str(stopped),
            parameters=dict(parameters),
            cwd=str(run_dir),
            progress_bar=False,
            extra_arguments=["--log-level=CRITICAL"],
            shutdown_kernel="immediate",
        )
    except RuntimeError as error:  # of nbclient, whether the kernel died before its first cell or later
        raise NotebookError(
            "the kernel died: killed from outside, or out of memory",
            where=f"notebook {notebook.stem}",
            allowed="a kernel that lives to the last cell",
            todo=f"look at memory and repeat the call; what ran stands in {stopped}, finished work is kept",
        ) from error
    except papermill.PapermillExecutionError as error:
        message = " ".join(error.evalue.split())
        ours = re.fullmatch(r"(.*)\. Allowed: (.*)\. What to do: (.*)\.", message)
        found, allowed, todo = ours.groups() if ours else (f"{error.ename}: {message}", "cells that run", "mend it")
        raise NotebookError(
            found,
            where=f"notebook {notebook.stem}, cell {error.exec_count}",
            allowed=allowed,
            todo=f"{todo}; the cell stands in {stopped}, finished work is kept",
        ) from error
    stopped.replace(place / notebook.name)


def _provenance() -> dict[str, object]:
    """Return when, with what versions and on which commit the run was made."""
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=project(), capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "shopskill": importlib.metadata.version("shopskill"),
        "commit": head or None,
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
    }


def _parser() -> Parser:
    """Describe the command."""
    parser = Parser(prog="shopskill run", description="run the notebooks with a YAML of parameters")
    parser.add_argument("parameters", type=Path, metavar="PARAMS", help="flat YAML, for example params/embedded.yaml")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a notebook, as 03_gate_a")
    parser.add_argument("-p", dest="overrides", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--out", type=Path, metavar="DIR", help="run folder; default outputs/<PARAMS>")
    parser.add_argument("--seeds", type=int, nargs="+", metavar="N", help="a run for each seed of masks and analysis")
    parser.add_argument("--limit", type=int, metavar="N", help="roll out the first N tasks only, as a pilot")
    parser.add_argument("--stage", type=int, metavar="N", help="labels after the first N declared stages, no gate")
    parser.add_argument("--replicate", type=int, metavar="SEED", help="label a finished gate again on new masks")
    parser.add_argument("--budget-tokens", type=int, metavar="N", help="stop when all models have spent N tokens")
    parser.add_argument("--budget-usd", type=float, metavar="X", help="stop when they have cost X, by their prices")
    parser.set_defaults(command=_run)
    return parser


def stoppable(answer: Callable[[], str], command: str) -> str:
    """Answer, or stop at SIGTERM and Ctrl-C, when whatever is in flight has been finished and kept."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return answer()
    except KeyboardInterrupt:
        raise Interrupted(
            "stopped on request",
            where=command,
            allowed="stopping at any time: what was finished is kept",
            todo="repeat the same call to go on",
        ) from None


def _run(options: argparse.Namespace) -> str:
    """Run the notebooks; answer with the selection table, looks, notes, verdicts and the report's place."""
    return stoppable(lambda: _answer(options), "shopskill run")


def _answer(options: argparse.Namespace) -> str:
    """Do what the options say."""
    seeds = options.seeds or []
    _refuse_mixed(options)
    if len(set(seeds)) < len(seeds) or min(seeds, default=0) < 0:
        raise ParameterError(
            f"the seeds are {seeds}", where="--seeds", allowed="different numbers from 0", todo="correct them"
        )
    order = read_order(options.parameters, options.only, options.overrides, options.out)
    purse = _purse(options, order)
    if options.limit is not None:
        return pilot(order, options.limit, purse)
    if options.stage is not None:
        return labels(order, purse, lambda bench, rule: interim.look(bench, options.stage, rule))
    if options.replicate is not None:
        return labels(order, purse, lambda bench, rule: interim.replicate(bench, options.replicate, rule))
    if seeds:
        return over_seeds(order, seeds, purse)
    place = execute(order, purse)
    lines = []
    if (place / "selection.csv").exists():
        table = pd.read_csv(place / "selection.csv", index_col=0, dtype={"rank": "Int64"})
        lines.append(table.to_string(na_rep="-"))
    for name, record in ((name, _record(place / f"{name[3:]}.json")) for name in _up_to_last(order)):
        if record:
            told = looks.told(place / f"{name[3:]}.json", order.run_dir)
            trust = [record["together"]["trust"]] if "together" in record else []
            lines += [record["verdict"], *trust, *(f"note: {note}" for note in record["notes"]), told]
    if "05_online" in order.chosen:
        lines += [_record(path)["verdict"] for path in sorted(place.glob("online/round_*/round.json"))]
    return "\n".join([*lines, f"report: {place / 'report.html'}"])


def _refuse_mixed(options: argparse.Namespace) -> None:
    """Refuse a pilot, a look or a replication of anything but one whole run."""
    least = {"limit": 1, "stage": 1, "replicate": 0}
    given = {name: getattr(options, name) for name in least if getattr(options, name) is not None}
    for name, value in given.items():
        others = [f"--{other}" for other in (*least, "seeds", "only") if other != name and getattr(options, other)]
        if value < least[name] or others:
            raise ParameterError(
                f"--{name} {value} cannot be used " + (f"with {' and '.join(others)}" if others else "so"),
                where=f"--{name}",
                allowed=f"a number from {least[name]}, for one whole run",
                todo="leave the others out" if others else "correct it",
            )


def _purse(options: argparse.Namespace, order: Order) -> Purse:
    """Return what the run may spend, all its processes and models together."""
    asked = {who for name in order.chosen for who in STAGES[name].asks}
    return workbench.purse(order.settings, order.run_dir, asked, options.budget_tokens, options.budget_usd)


if __name__ == "__main__":
    sys.exit(respond(_parser()))
