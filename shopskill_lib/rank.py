"""The command `shopskill rank`: the arms of a ranking, then its notebook, into a folder of a finished run."""

import argparse
import sys
from pathlib import Path

from shopskill_lib import contest, lineup, looks, parameters, protocol, report, workbench
from shopskill_lib.console import Parser, respond
from shopskill_lib.files import parse_json, read_text
from shopskill_lib.folders import project
from shopskill_lib.parameters import Scalar
from shopskill_lib.run import run_notebook, stoppable

NOTEBOOK = "06_ranking"


def _parser() -> Parser:
    """Describe the command."""
    parser = Parser(prog="shopskill rank", description="a finished gate's ranking on tasks that it has not seen")
    parser.add_argument("parameters", type=Path, metavar="PARAMS", help="flat YAML, for example params/ranking.yaml")
    parser.add_argument("--run", type=Path, required=True, metavar="RUN", help="run folder with a frozen Gate A")
    parser.add_argument("-p", dest="overrides", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--budget-tokens", type=int, metavar="N", help="stop when the run has spent N tokens in all")
    parser.add_argument("--budget-usd", type=float, metavar="X", help="stop when it has cost X, by its prices")
    parser.set_defaults(command=lambda options: stoppable(lambda: _rank(options), "shopskill rank"))
    return parser


def _rank(options: argparse.Namespace) -> str:
    """Roll out what is owed where progress is seen, then execute the notebook, which finds nothing owed."""
    notebook = project() / "notebooks" / "more" / f"{NOTEBOOK}.ipynb"
    given = _given(options, notebook)
    run = options.run.resolve()
    wish = lineup.Wish.of(parameters.declared(notebook) | given)
    bench = lineup.open_run(run, wish)
    budget = workbench.purse(bench.settings, run, ["policy"], options.budget_tokens, options.budget_usd)
    bench = workbench.paid_from(bench, budget)
    plan = lineup.declare(bench, wish)
    sys.stderr.write(f"ranking: {protocol.foresee(bench, lineup.planned(bench, plan))}\n")
    contest.measure(bench, wish)
    run_notebook(notebook, bench.folder, run, {**given, "run_dir": "."})
    report.write(f"shopskill rank {run.name}", [bench.folder / notebook.name], bench.folder / "report.html")
    record = parse_json(read_text(run / looks.RANKING), str(run / looks.RANKING))
    counted = f"looks at the validation tasks so far: {looks.taken(run, protocol.GATE)}"
    notes = [f"note: {note}" for note in record["notes"]]
    return "\n".join([record["verdict"], *notes, counted, f"report: {bench.folder / 'report.html'}"])


def _given(options: argparse.Namespace, notebook: Path) -> dict[str, Scalar]:
    """Return the parameters that the file and the command line give.

    Raises:
        ParameterError: the notebook does not declare one, or it is of another type.
    """
    known = {name: value for name, value in parameters.declared(notebook).items() if name != "run_dir"}
    given = parameters.read_parameters(options.parameters)
    parameters.check_parameters(given, known, str(options.parameters))
    typed = dict(map(parameters.parse_override, options.overrides))
    parameters.check_parameters(typed, known, "-p")
    return given | typed


if __name__ == "__main__":
    sys.exit(respond(_parser()))
