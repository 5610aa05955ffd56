"""`shopskill status` on a run folder with everything that may be bought beside the gates: counts, never an effect."""

import json
from pathlib import Path

import pytest
from test_ranking import WISH, change, pool

from shopskill_lib import contest, gates, interim, lineup, looks, protocol, repeats, status
from shopskill_lib.cycle import Rule
from shopskill_lib.files import write_json
from shopskill_lib.settings import Settings
from shopskill_lib.workbench import Bench

RULE = Rule(resamples=100)
VAL, TEST, SETS = 30, 4, 3


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A Chinese run folder of two declared stages; the first has been looked at."""
    place = tmp_path_factory.mktemp("status")
    write_json(place / "pool.json", {"pool": pool("zh").model_dump(mode="json")})
    names = {"language": "zh", "n_products": 1700, "n_val": VAL, "n_test": TEST, "max_steps": 10}
    settings = Settings.of({**names, "n_stages": 2, "draft": str(place / "pool.json")})
    (place / "run").mkdir()
    write_json(place / "run" / "params.json", settings.model_dump(mode="json"))
    begun = protocol.set_up(settings, place / "run")
    interim.look(begun, 1, RULE)
    return begun


def rows(folder: Path) -> dict[tuple[str, str], list[str]]:
    """Return split and arm -> cells of the status table: planned, scored, owed, missing, mean, faults, invalid."""
    split, found = "", {}
    for line in status.report(folder).splitlines()[3:]:
        cells = line.rsplit(maxsplit=7)
        if len(cells) < 8 or not cells[1].isdecimal():
            break
        part, _, arm = cells[0].rstrip().rpartition(" ")
        split = part.strip() or split
        found[split, arm] = cells[1:]
    return found


def test_a_run_lists_stages_repeats_replications_and_its_ranking(bench: Bench) -> None:
    folder = bench.folder
    told = status.report(folder)
    assert f"stage 1 of 2: {VAL // 2} of {VAL // 2} tasks complete, looked at" in told
    assert f"stage 2 of 2: 0 of {VAL // 2} tasks complete\n" in told
    assert set(rows(folder)) == {("val", "bare"), ("val", "masked")}

    gate = gates.fit_gate(
        gates.read_observations(protocol.gate_a(bench), folder / protocol.INTERVENTIONS), resamples=100
    )
    looks.freeze(folder, folder / protocol.GATE, gate.to_json(), gate.key())
    repeats.measure(bench, ["val"], 2, resamples=100)
    interim.replicate(bench, 1007, RULE)
    ranking = lineup.open_run(folder, WISH)
    contest.measure(ranking, WISH)

    told, found = status.report(folder), rows(folder)
    assert "nothing is owed" in told and told.startswith("simulated run ")
    assert [found["val", arm][:4] for arm in ("bare", "masked")] == [[str(VAL), str(VAL), "0", "0"]] * 2
    assert found["val", "repeat"][:4] == [str(2 * VAL), str(2 * VAL), "0", "0"]
    assert found["val, masks 1007", "masked"][:4] == [str(VAL), str(VAL), "0", "0"]
    tasks, arms = WISH.n_ranking, ["bare", "placebo", "top", "bottom", *(f"random:{n}" for n in range(SETS)), "fresh"]
    counts = dict.fromkeys(arms, tasks) | {"fresh": tasks * WISH.fresh_masks}
    assert {arm: found["ranking", arm][:2] for arm in arms} == {arm: [str(n)] * 2 for arm, n in counts.items()}
    neutral = {key for key, cells in found.items() if cells[4] != "-"}
    assert neutral == {("val", "bare"), ("val", "repeat"), ("ranking", "bare")}, "other means would be a look"
    coefficients = [f"{factor['coefficient']:.4f}" for factor in gate.to_json()["factors"]]
    assert not any(value in told for value in coefficients)


def test_what_is_owed_of_repeats_and_ranking_is_counted(bench: Bench) -> None:
    """Lines that are gone are owed again; a ranking that cannot be opened hides nothing else."""
    folder = bench.folder
    for path, kept in ((folder / "episodes" / "repeat.jsonl", -3), (folder / "ranking" / "episodes" / "top.jsonl", -2)):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(lines[:kept]), encoding="utf-8")
    found = rows(folder)
    assert found["val", "repeat"][:3] == [str(2 * VAL), str(2 * VAL - 3), "3"]
    assert found["ranking", "top"][2] == "2"
    assert "5 episodes owed" in status.report(folder)
    plan = json.loads((folder / "ranking" / "plan.json").read_text(encoding="utf-8"))
    change(folder / "ranking" / "plan.json", tasks="none")
    told = status.report(folder)
    assert "the ranking is not listed: " in told and "plan.json" in told and "  repeat " in told
    (folder / "ranking" / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
