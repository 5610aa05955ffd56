"""The commands of `shopskill` that have no module of their own, and the list of all: one line a command."""

import argparse
import json
import os
import sys
from pathlib import Path

from shopskill_lib import claim, distil, floors, gates, pilots, planning, protocol, repeats, status, workbench
from shopskill_lib.adapters import folder, formats
from shopskill_lib.adapters.recorded import as_trajectories, unreadable
from shopskill_lib.console import Parser, respond
from shopskill_lib.errors import ParameterError
from shopskill_lib.files import write_json
from shopskill_lib.lab import planted, truth
from shopskill_lib.settings import Settings
from shopskill_lib.text import is_han


def main() -> int:
    """Run one command and return its exit code."""
    return respond(_parser())


def _parser() -> Parser:
    """Describe the commands."""
    parser = Parser(prog="shopskill", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    gate = commands.add_parser("gate", help="effects, uncertainty and selection from masked and bare pairs")
    gate.add_argument("file", type=Path, help="CSV of pairs, a ShopSimRL contributions.json, or the folder of a gate")
    gate.add_argument("--interventions", type=Path, metavar="JSON", help="ids, slots and kinds of the mask's columns")
    gate.add_argument("--budget", type=int, metavar="K", help="most factors to select; default min(10, slots)")
    gate.add_argument(
        "--max-missing", type=float, default=0.0, metavar="SHARE", help="share of pairs that may be missing"
    )
    gate.set_defaults(command=_gate)

    compare = commands.add_parser("compare", help="paired comparison of equipped and bare runs")
    compare.add_argument("file", type=Path, help="CSV with bare_x and equipped_x columns")
    compare.set_defaults(command=_compare)

    for command in (gate, compare):
        command.add_argument("--resamples", type=int, default=10_000, help="bootstrap resamples")
        command.add_argument("--analysis-seed", type=int, default=0, help="seed of the bootstrap")
        command.add_argument("--claim", type=Path, metavar="DIR", help="write the claim sheet there, Markdown and HTML")
        command.add_argument("--json", metavar="OUT", help="write the record there; - prints it instead of the table")

    _add_recordings(commands)
    simulate = commands.add_parser("simulate-observations", help="simulated pairs from planted effects")
    simulate.add_argument("--seed", type=int, required=True)
    simulate.add_argument("--tasks", type=int, default=400, help="tasks in each split")
    simulate.add_argument("--out", type=Path, default=Path("outputs/embedded"), help="run folder")
    simulate.set_defaults(command=_simulate)

    state = commands.add_parser("status", help="how far a run is: episodes by arm, never an effect")
    state.add_argument("run", type=Path, metavar="RUN", help="run folder")
    state.set_defaults(command=lambda options: status.report(options.run))

    _describe_plan(commands)
    _describe_noise(commands)

    true = commands.add_parser("truth", help="true effects of a run's chunks on the simulated shopper, by brute force")
    true.add_argument("run", type=Path, metavar="RUN", help="run folder with params.json")
    true.add_argument("--draws", type=int, default=truth.DRAWS, help="draws a task at least")
    true.add_argument("--processes", type=int, default=2, help="processes at once")
    true.set_defaults(command=_truth)

    commands.add_parser("doctor", help="check a set-up before it costs anything", add_help=False)
    commands.add_parser("pool", help="several gates of the same chunks as one analysis", add_help=False)
    commands.add_parser("rank", help="a finished gate's ranking on tasks that it has not seen", add_help=False)
    commands.add_parser("run", help="run the notebooks with a YAML of parameters", add_help=False)
    return parser


def _describe_plan(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Describe `plan`."""
    plan = commands.add_parser("plan", help="before a gate: errors, designs and what the rule will do, by size")
    plan.add_argument(
        "run",
        type=Path,
        nargs="?",
        metavar="RUN",
        help="run folder with a pilot, repeats or a Gate A: success, share between tasks, tokens and prices",
    )
    plan.add_argument("--success", type=float, help="mean bare success, 0 to 1")
    plan.add_argument("--between", type=float, help="share of variance between tasks, 0 to 1")
    plan.add_argument("--chunks", type=int, default=16, help="chunks of one version")
    plan.add_argument("--rewrites", type=int, default=0, help="further chunks with a rewrite")
    plan.add_argument("--effect", type=float, default=0.05, help="gain of a chunk that helps")
    plan.add_argument("--helping", type=int, default=4, help="chunks that help")
    plan.add_argument("--budget", type=int, metavar="K", help="most factors to select; default min(10, slots)")
    plan.add_argument("--error", type=float, default=0.03, help="standard error that is wanted")
    plan.add_argument("--spread", type=float, default=0.05, help="standard deviation of a chunk's effect over tasks")
    plan.add_argument("--rollouts", type=int, help="budget, bare and masked together, to split over tasks")
    plan.set_defaults(command=_plan)


def _describe_noise(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Describe `noise`."""
    noise = commands.add_parser("noise", help="repeat a run's bare arm: what two identical arms differ by")
    noise.add_argument("run", type=Path, metavar="RUN", help="run folder with params.json")
    noise.add_argument("--repeats", type=int, default=5, metavar="N", help="bare runs a task beside the gate's own")
    noise.add_argument("--split", choices=["val", "test", "both"], default="both", help="whose tasks are repeated")
    noise.add_argument(
        "--skill",
        default="",
        metavar="ROUND",
        help="online/round_000: at that round's weights, beside its gate",
    )
    noise.add_argument("--resamples", type=int, default=2000, help="resamples of tasks, and draws of coefficients")
    noise.add_argument("--analysis-seed", type=int, default=0, help="seed of both")
    noise.add_argument("--budget-tokens", type=int, metavar="N", help="stop when the run has spent N tokens in all")
    noise.add_argument("--budget-usd", type=float, metavar="X", help="stop when it has cost X, by its prices")
    noise.set_defaults(command=_noise)


def _add_recordings(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Describe the commands on what was made elsewhere."""
    cards = commands.add_parser("cards", help="success cards from recordings, without a shop")
    cards.add_argument(
        "file", type=Path, help="JSONL of chat messages, the folder of an import, or what can be imported"
    )
    cards.add_argument("--out", type=Path, default=Path("outputs/cards"), metavar="DIR", help="folder of the cards")
    cards.add_argument("-p", dest="overrides", action="append", default=[], metavar="NAME=VALUE", help="a parameter")
    cards.set_defaults(command=_cards)

    names = ", ".join(form.name for form in formats.FORMATS)
    bring = commands.add_parser("import", help="read a run, skill, pool or gate made elsewhere into a folder")
    bring.add_argument("source", type=Path, help="file or folder")
    bring.add_argument("--format", default="", metavar="NAME", help=f"{names}; recognised without it")
    bring.add_argument("--out", type=Path, default=Path("outputs/imported"), metavar="DIR", help="new or empty folder")
    bring.set_defaults(command=_import)

    export = commands.add_parser("export", help="write an import, a run or a skill in another format")
    export.add_argument("source", type=Path, help="folder of an import, or whatever can be imported")
    export.add_argument("--format", required=True, metavar="NAME", help=names)
    export.add_argument("--out", type=Path, required=True, metavar="FILE", help="a new file or folder")
    export.set_defaults(command=_export)


def _gate(options: argparse.Namespace) -> str:
    """Fit a gate on a file of pairs."""
    _refuse_overwriting(options, claim.GATE_A)
    observations = gates.read_observations(options.file, options.interventions, options.max_missing)
    seeds = {"resamples": options.resamples, "analysis_seed": options.analysis_seed}
    gate = gates.fit_gate(observations, options.budget, **seeds)
    if options.claim is not None:
        claim.write(claim.of_gate(gate, claim.Known()), options.claim)
    return _answer(gate, options.json)


def _compare(options: argparse.Namespace) -> str:
    """Compare two arms in a file."""
    _refuse_overwriting(options, claim.GATE_B)
    bare, equipped = gates.read_comparison(options.file)
    seeds = {"resamples": options.resamples, "analysis_seed": options.analysis_seed}
    comparison = gates.compare_paired(bare, equipped, **seeds)
    if options.claim is not None:
        claim.write(claim.of_comparison(comparison, claim.Known()), options.claim, claim.GATE_B)
    return _answer(comparison, options.json)


def _refuse_overwriting(options: argparse.Namespace, sheet: str) -> None:
    """Refuse a record or a claim sheet that would replace what it is made from."""
    read = [os.path.realpath(path) for path in (options.file, getattr(options, "interventions", None)) if path]
    written = [(options.json, "--json")] if options.json else []
    if options.claim is not None:
        written += [(options.claim / f"{sheet}{ending}", "--claim") for ending in (".md", ".html")]
    for place, option in written:
        if os.path.realpath(place) in read:
            raise ParameterError(
                f"{place} is a file that this command reads",
                where=option,
                allowed="another file, or - for standard output" if option == "--json" else "another folder",
                todo="give what is written a place of its own",
            )


def _answer(result: gates.Gate | gates.Comparison, place: str | None) -> str:
    """Return the record where `-` asks for it, else the table; write the record where a path is given."""
    if place == "-":
        return json.dumps(result.to_json(), ensure_ascii=False, indent=1, allow_nan=False)
    if place is not None:
        write_json(Path(place), result.to_json())
    return str(result)


def _simulate(options: argparse.Namespace) -> str:
    """Write simulated observations."""
    planted.simulate(options.seed, options.tasks, options.out)
    return f"simulated observations of {options.tasks} tasks a split, seed {options.seed}: {options.out}"


def _cards(options: argparse.Namespace) -> str:
    """Make success cards of recordings, in the language of most requests unless told otherwise."""
    episodes = formats.read(options.file).episodes
    trajectories = as_trajectories(episodes)
    han = sum(any(map(is_han, trajectory.instruction)) for trajectory in trajectories)
    given = {"language": "zh" if 2 * han > len(trajectories) else "en"} | dict(
        text.partition("=")[::2] for text in options.overrides
    )
    settings = Settings.of_texts(given, distil.RECORDED).relative_to(Path.cwd())
    return "\n".join([distil.report_recordings(trajectories, settings, options.out), *unreadable(episodes)])


def _import(options: argparse.Namespace) -> str:
    """Read a source into a folder of its own."""
    found = formats.read(options.source, options.format)
    folder.save(found, options.out)
    return f"{formats.summary(found)}\nimport: {options.out}"


def _export(options: argparse.Namespace) -> str:
    """Write a source in another format, and say what that format does not hold."""
    found = formats.read(options.source)
    lost = formats.export(found, formats.named(options.format), options.out)
    return "\n".join([f"{options.out}: {options.format}, read back", *(f"note: {said}" for said in lost)])


def _plan(options: argparse.Namespace) -> str:
    """Compare designs and sizes for what is known of tasks and chunks."""
    found = None if options.run is None else pilots.read(options.run)
    success = found.success if found and options.success is None else options.success
    between = found.between if found and options.between is None else options.between
    if success is None or between is None:
        raise ParameterError(
            "bare success and the share of variance between tasks are not known",
            where="shopskill plan",
            allowed="a run folder with a pilot, repeats or a Gate A (RUN), or --success and --between as shares",
            todo="pilot a run first, or guess: --success 0.45 --between 0.5",
        )
    asked = (options.chunks, options.rewrites, options.effect, options.helping, options.budget, options.error)
    question = planning.Question(success, between, *asked, options.spread)
    cost, told = (None, "guessed") if found is None else (found.cost, found.told)
    given = [name for name in ("success", "between") if found is not None and getattr(options, name) is not None]
    told = ", ".join([told, *(f"{name} guessed" for name in given)])
    known = pilots.Pilot(success, between, cost or pilots.Cost(), told)
    table = planning.compare(question, cost=cost)
    parts = [f"{known}; {question}", table.to_string(), planning.recommend(question, cost)]
    if options.rollouts is not None:
        split = planning.allocate(question, options.rollouts, cost=cost)
        parts += [f"{options.rollouts} rollouts, split between tasks and masked rollouts a task:", split.to_string()]
    return "\n".join(parts)


def _noise(options: argparse.Namespace) -> str:
    """Measure the noise floor of a run, or find its episodes there."""
    bench = protocol.at_round(repeats.open_run(options.run), options.skill)
    budget = workbench.purse(bench.settings, options.run, ["policy"], options.budget_tokens, options.budget_usd)
    splits: list[floors.Side] = ["val", "test"] if options.split == "both" else [options.split]
    draws = {"resamples": options.resamples, "analysis_seed": options.analysis_seed}
    found = repeats.measure(workbench.paid_from(bench, budget), splits, options.repeats, **draws)
    return f"{found}\nnoise floor: {bench.folder / floors.FILE}; the notebooks show it when they run again"


def _truth(options: argparse.Namespace) -> str:
    """Compute the truth of a run, or find it there."""
    found = truth.measure(truth.open_run(options.run), draws=options.draws, processes=options.processes)
    return f"{found}\ntruth: {options.run / truth.TABLE}"


if __name__ == "__main__":
    sys.exit(main())
