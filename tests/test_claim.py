"""The claim sheet says what the numbers say, and survives whatever a title holds."""

import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import FACTORS, GateWriter, to_csv

from shopskill_lib import claim, cli, looks
from shopskill_lib.files import write_json
from shopskill_lib.gates import compare_paired, fit_gate, read_comparison, read_observations
from shopskill_lib.jsonl import append_lines
from shopskill_lib.records import ModelCall, Usage
from shopskill_lib.sheets import Sheet

Rows = list[dict[str, str]]

TITLES = ("核对规格 | 到字", "<script>alert(1)</script>", "**bold** `code` & $x$", "two\nlines")


class Cells(HTMLParser):
    """Collects tags and the texts of table cells."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - the parser's own form
        self.tags.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "td" and self.cells:
            self.cells[-1] += data


def lines(sheet: Sheet, heading: str) -> str:
    (section,) = (section for section in sheet.sections if section.heading == heading)
    return "\n".join(section.lines)


def strong(rows: Rows) -> None:
    """The first factor decides the reward of most masked runs; every bare run fails."""
    for number, row in enumerate(rows):
        row["reward"], row["bare_reward"] = ("1" if number % 20 == 0 else row["search"]), "0"


def test_titles_survive_in_both_files_and_are_never_markup(gate_csv: GateWriter, write: Callable[..., Path]) -> None:
    items = [{"intervention_id": name, "title": title} for name, title in zip(FACTORS, TITLES, strict=True)]
    named = write(json.dumps(items, ensure_ascii=False), "named.json")
    gate = fit_gate(read_observations(gate_csv(), named), resamples=100)
    markdown, page = claim.write(claim.of_gate(gate, claim.Known()), named.parent / "out")
    seen = Cells(page.read_text(encoding="utf-8"))
    assert "script" not in seen.tags
    assert set(seen.cells[::6]) == {" ".join(title.split()) for title in TITLES}
    text = markdown.read_text(encoding="utf-8")
    assert r"核对规格 \| 到字" in text
    assert r"\<script\>" in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace(r"\|", "").count("|") for line in table} == {7}
    assert len(table) == 2 + len(FACTORS)


def test_a_strong_effect_is_claimed_with_its_interval_and_the_rest_is_left_open(gate_csv: GateWriter) -> None:
    gate = fit_gate(read_observations(gate_csv(change=strong)), resamples=100)
    sheet = claim.of_gate(gate, claim.Known())
    assert "Told apart from 0 at a false discovery rate of 5 %: search +0." in lines(
        sheet, "What the intervals allow to say"
    )
    assert "1 of 4 effects are told apart from 0" in sheet.quote
    assert "That any chunk has an effect" not in lines(sheet, "What this does not show")
    noise = claim.of_gate(fit_gate(read_observations(gate_csv(seed=3)), resamples=100), claim.Known())
    assert "0 of 4 effects are told apart from 0" in noise.quote
    assert "No effect is told apart" in lines(noise, "What the intervals allow to say")
    assert "The sign of 4 of 4 effects" in lines(noise, "What this does not show")
    assert "nobody counts looks" in lines(noise, "Cost and looks")


def alike(rows: Rows) -> None:
    """Masked and bare runs earn the same, task by task: a shopper at temperature 0 that reads nothing."""
    for number, row in enumerate(rows):
        row["reward"] = row["bare_reward"] = str(number % 2)


def test_arms_that_never_differ_have_a_sheet_too(gate_csv: GateWriter) -> None:
    sheet = claim.of_gate(fit_gate(read_observations(gate_csv(change=alike)), resamples=100), claim.Known())
    assert "No effect is told apart from 0" in lines(sheet, "What the intervals allow to say")


def test_simulation_checkpoint_overlap_and_missing_pairs_are_told(gate_csv: GateWriter) -> None:
    def change(rows: Rows) -> None:
        for row in rows:
            row |= {
                "checkpoint": "step-40",
                "origin": "simulated shopper; splits may share product (allow_overlap M2)",
            }
        rows[0]["reward"] = ""

    gate = fit_gate(read_observations(gate_csv(change=change), max_missing=0.1), resamples=100)
    sheet = claim.of_gate(gate, claim.Known())
    page = sheet.to_html()
    assert sheet.title.startswith("simulated: ")
    assert sheet.quote.startswith("simulated: Gate A, pairs.csv, checkpoint step-40, 99 pairs of 99 tasks")
    assert "Anything about a real model" in page
    assert "splits may share product (allow_overlap M2)" in lines(sheet, "Notes")
    assert "What 1 missing masked and 0 missing bare episodes would have earned" in lines(
        sheet, "What this does not show"
    )


def call(arm: str, task_id: str, money: float | None) -> ModelCall:
    usage = Usage(prompt_tokens=100, completion_tokens=10)
    told = {"arm": arm, "stage": "gate_a", "role": "policy", "task_id": task_id, "sample": 0, "attempt": 0}
    return ModelCall.model_validate(
        told | {"outcome": "call", "usage": usage, "money": money, "tries": 1, "seconds": 1}
    )


def test_cost_and_looks_are_those_of_the_run_folder(gate_csv: GateWriter, tmp_path: Path) -> None:
    gate = fit_gate(read_observations(gate_csv()), resamples=100)
    looks.freeze(tmp_path, tmp_path / "gate_a.json", gate.to_json(), gate.key())
    looks.freeze(tmp_path, tmp_path / "gate_a.json", gate.to_json(), {"sha256": "x"}, "a wrong price was mended")
    append_lines(tmp_path / "calls.jsonl", [call("bare", "0001", 0.25), call("bare", "1", 0.25), call("train", "1", 9)])
    told = lines(claim.of_gate(gate, claim.known(tmp_path / "gate_a.json")), "Cost and looks")
    assert "100 masked, 100 bare" in told
    assert "money: 0.5000 in 2 calls of 1 of 200 episodes" in told
    assert "2 at the validation tasks, 0 at the test tasks; further ones because: a wrong price was mended" in told
    append_lines(tmp_path / "calls.jsonl", [call("masked", "0002", None)])
    assert "money: not known" in lines(claim.of_gate(gate, claim.known(tmp_path / "gate_a.json")), "Cost and looks")


@pytest.mark.parametrize(("gain", "open_side"), [(0.0, True), (0.6, False)])
def test_a_comparison_claims_a_change_only_with_its_interval(
    write: Callable[..., Path], gain: float, open_side: bool
) -> None:
    rng = np.random.default_rng(1)
    rows = [
        {
            "task_id": str(number),
            "bare_reward": str(int(bare < 0.3)),
            "equipped_reward": str(int(equipped < 0.3 + gain)),
        }
        for number, (bare, equipped) in enumerate(rng.random((200, 2)))
    ]
    found = compare_paired(*read_comparison(write(to_csv(rows))), resamples=200)
    sheet = claim.of_comparison(found, claim.Known(val_looks=1, test_looks=2))
    assert ("That the skill changes the reward" in lines(sheet, "What this does not show")) == open_side
    assert "one of 2 looks at these tasks" in lines(sheet, "What this does not show")
    assert "looks at test so far: 2: equipped minus bare reward is" in sheet.quote


def test_a_test_counts_looks_over_runs_and_is_held_against_what_its_gate_promised(
    gate_csv: GateWriter, write: Callable[..., Path], tmp_path: Path
) -> None:
    gate = fit_gate(read_observations(gate_csv(change=strong)), resamples=100)
    rows = [{"task_id": str(n), "bare_reward": str(n % 2), "equipped_reward": "1"} for n in range(40)]
    found = compare_paired(*read_comparison(write(to_csv(rows))), resamples=200)
    for name in ("earlier", "run"):
        run = tmp_path / name
        (run / "episodes").mkdir(parents=True)
        (run / "episodes" / "equipped.jsonl").write_text('{"shop": {"catalogue": "p"}}\n')
        (run / "test_observations.csv").write_text("task_id\n" + "".join(f"{n}\n" for n in range(40)))
        looks.freeze(run, run / "gate_a.json", gate.to_json(), gate.key())
        looks.freeze(run, run / "gate_b.json", found.to_json(), found.key() | {"run": name})
    sheet = claim.of_comparison(found, claim.known(run / "gate_b.json"))
    assert "looks at test so far: 1 in this run, 1 over the runs beside it: equipped" in sheet.quote
    assert "one of 2 looks at these tasks" in lines(sheet, "What this does not show")
    told = lines(sheet, "Cost and looks")
    assert "1 at the test tasks; at the same test tasks 1 over the runs beside it (earlier 1)." in told
    frame = gate.to_frame().set_index("intervention_id")
    total = frame.loc[list(gate.selected), "coefficient"].sum()
    assert gate.selected
    assert gate.halves is not None
    told = lines(sheet, "What the intervals allow to say")
    assert f"The {len(gate.selected)} selected chunks' estimates sum to {total:+.3f} on the validation tasks" in told
    assert f"one half of its tasks {gate.halves.gain:+.3f}); measured here +0.500." in sheet.to_markdown()


def test_the_sheet_of_a_round_bears_its_name(gate_csv: GateWriter) -> None:
    gate = fit_gate(read_observations(gate_csv()), resamples=100)
    sheet = claim.of_gate(gate, claim.Known(), "online round 3")
    assert sheet.title == "Claim sheet of online round 3: pairs.csv"
    assert sheet.quote.startswith("Online round 3, pairs.csv, ")


def test_nothing_to_plan_with_is_said(gate_csv: GateWriter) -> None:
    def never(rows: Rows) -> None:
        for row in rows:
            row["bare_reward"] = "0"

    sheet = claim.of_gate(fit_gate(read_observations(gate_csv(change=never)), resamples=100), claim.Known())
    assert "Tasks needed are not told" in lines(sheet, "What would change it")


def test_published_gate_and_test_by_command(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, test = shared / "data" / "published_gates", shared / "data" / "published_test" / "base.csv"
    named = ["--interventions", str(gate / "round_000_expected.json"), "--resamples", "500"]
    for words in (["gate", str(gate / "round_000.csv"), *named], ["compare", str(test)]):
        monkeypatch.setattr("sys.argv", ["shopskill", *words, "--claim", str(tmp_path)])
        assert cli.main() == 0
    written = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert set(written) == {"claim.md", "claim.html", "claim_b.md", "claim_b.html"}
    for words_of_it in (
        "the rule selected 7 of 15 slots",
        "0 of 16 effects are told apart from 0",
        "F test of all coefficients being 0, p = 0.43",
        "0.050: 2,635",
    ):
        assert words_of_it in written["claim.html"]
    assert "-0.0186 to +0.0663 over 400 tasks: not told apart from 0" in written["claim_b.html"]


def test_a_claim_never_replaces_what_it_is_made_from(
    gate_csv: GateWriter, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    pairs = gate_csv().rename(gate_csv().with_name("claim.md"))
    before = pairs.read_bytes()
    monkeypatch.setattr("sys.argv", ["shopskill", "gate", str(pairs), "--claim", str(pairs.parent)])
    assert cli.main() == 2
    assert "--claim" in capsys.readouterr().err
    assert pairs.read_bytes() == before


def test_a_sheet_written_again_counts_no_later_look(tmp_path: Path) -> None:
    def look(at: str) -> dict[str, str]:
        return {"key_sha256": at, "at": f"2026-01-01T00:00:{at}+00:00", "reason": f"at {at}"}

    times = {"gate_a.json": "01", "online/round_000/gate_a.json": "02", "gate_b.json": "03"}
    for name, at in times.items():
        write_json(tmp_path / name, {"looks": [look(at)]})
    first, last = claim.known(tmp_path / "gate_a.json"), claim.known(tmp_path / "gate_b.json")
    assert (first.val_looks, first.test_looks) == (1, 0)
    assert (last.val_looks, last.test_looks) == (2, 1)
    of_round = claim.known(tmp_path / "online" / "round_000" / "gate_a.json", tmp_path)
    assert (of_round.val_looks, of_round.test_looks) == (2, 0)
