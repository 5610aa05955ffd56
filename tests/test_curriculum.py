"""The curriculum: probabilities, draws, its file, and a trainer that imports nothing else."""

import itertools
import json
import math
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shopskill_lib.curriculum import Curriculum, Shown, draw, load, rho, save, uniform

ROOT = Path(__file__).parents[1]
FILE = ROOT / "shopskill_lib" / "curriculum.py"


def curriculum(q: float = 0.2, **rhos: float) -> Curriculum:
    shown = tuple(Shown(name, f"{number:064x}", 0.1, value) for number, (name, value) in enumerate(rhos.items()))
    return Curriculum(3, "step-60", 7, q, shown)


EXAMPLE = curriculum(options=0.9, 核对价格=0.55, way_out=0.2)


# What the probabilities are


def test_rho_is_linear_in_the_positive_part() -> None:
    assert rho({"a": 0.2, "b": 0.1}, 0.2, 0.8) == pytest.approx({"a": 0.8, "b": 0.5})
    assert rho({"a": 0.04, "b": 0.01, "c": 0.0, "d": -0.3}) == pytest.approx({"a": 0.9, "b": 0.375, "c": 0.2, "d": 0.2})


def test_without_a_positive_alpha_all_get_rho_min() -> None:
    assert rho({"a": 0.0, "b": -0.1}) == {"a": 0.2, "b": 0.2}
    assert rho({}) == {}


@given(st.dictionaries(st.text(min_size=1), st.floats(-1, 1), min_size=1), st.floats(0, 1), st.floats(0, 1))
def test_rho_keeps_order_and_bounds(alphas: dict[str, float], one: float, other: float) -> None:
    low, high = sorted((one, other))
    found = rho(alphas, low, high)
    assert list(found) == list(alphas)
    assert all(low <= value <= high for value in found.values())
    best = max(alphas, key=alphas.__getitem__)
    assert found[best] == (high if alphas[best] > 0 else low)
    ranked = [found[name] for name in sorted(alphas, key=alphas.__getitem__)]
    assert all(left <= right + 1e-12 for left, right in itertools.pairwise(ranked))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rho({"a": math.nan}), "chunk a, alpha is nan. Allowed: a finite number"),
        (lambda: rho({"a": math.inf}), "chunk a, alpha is inf"),
        (lambda: rho({"a": 0.1}, -0.1, 0.9), "rho_min is -0.1. Allowed: a probability from 0 to 1"),
        (lambda: rho({"a": 0.1}, 0.2, 1.1), "rho_max is 1.1"),
        (lambda: rho({"a": 0.1}, 0.9, 0.2), "rho_min is 0.9. Allowed: at most rho_max, 0.2"),
    ],
)
def test_bad_alphas_and_bounds_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


# What a group is shown


def test_the_draw_is_that_of_the_reference() -> None:
    assert uniform("7:STATE:11:skill-free") == 0.9898063039783391


def test_a_draw_is_what_its_numbers_say() -> None:
    for group in map(str, range(200)):
        prefix = f"7:{EXAMPLE.state_id}:{group}"
        found = draw(EXAMPLE, group)
        shown = [c.chunk_id for c in EXAMPLE.chunks if uniform(f"{prefix}:chunk:{c.chunk_id}") < c.rho]
        if uniform(f"{prefix}:skill-free") < EXAMPLE.q:
            assert (found.mode, found.chunk_ids) == ("skill_free", ())
        else:
            assert (found.mode, list(found.chunk_ids)) == ("assisted" if shown else "assisted_empty", shown)


@settings(max_examples=15, derandomize=True, deadline=None)
@given(st.integers(0, 19), st.lists(st.integers(0, 20), min_size=1, max_size=4), st.integers(0, 2**32))
def test_shares_converge_to_q_and_rho(q: int, rhos: list[int], seed: int) -> None:
    """Within four binomial standard deviations over 4,000 groups; 0 and 1 exactly."""
    state = replace(curriculum(q / 20, **{f"c{j}": value / 20 for j, value in enumerate(rhos)}), seed=seed)
    draws = [draw(state, str(group)) for group in range(4000)]
    assisted = [found for found in draws if found.mode != "skill_free"]

    def is_near(count: int, of: int, p: float) -> bool:
        return abs(count - of * p) <= 4 * math.sqrt(of * p * (1 - p))

    assert is_near(4000 - len(assisted), 4000, state.q)
    for shown in state.chunks:
        assert is_near(sum(shown.chunk_id in found.chunk_ids for found in assisted), len(assisted), shown.rho)
    assert all((found.mode == "assisted") == bool(found.chunk_ids) for found in draws)


def test_nothing_shown_is_not_skill_free() -> None:
    modes = {draw(curriculum(0.5, a=0.1), str(group)).mode for group in range(100)}
    assert modes == {"skill_free", "assisted", "assisted_empty"}
    assert {draw(curriculum(0.0), str(group)).mode for group in range(100)} == {"assisted_empty"}


def test_the_state_is_all_that_decides_a_draw_and_nothing_else() -> None:
    first = EXAMPLE.chunks[0]

    def changed(**changes: Any) -> str:
        return replace(EXAMPLE, chunks=(replace(first, **changes), *EXAMPLE.chunks[1:])).state_id

    deciding = [
        replace(EXAMPLE, round=4).state_id,
        replace(EXAMPLE, seed=8).state_id,
        replace(EXAMPLE, q=0.3).state_id,
        replace(EXAMPLE, chunks=EXAMPLE.chunks[1:]).state_id,
        changed(chunk_id="other"),
        changed(text_sha256="f" * 64),
        changed(rho=0.21),
    ]
    assert len({EXAMPLE.state_id, *deciding}) == 8
    assert EXAMPLE.state_id == replace(EXAMPLE, checkpoint="other").state_id == changed(alpha=-1.0)


# The file


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The file of the example, decoded."""
    path = tmp_path_factory.mktemp("curriculum") / "curriculum.json"
    save(EXAMPLE, path)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_a_saved_curriculum_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "curriculum.json"
    save(curriculum(0.9, old=0.1), path)
    with path.open(encoding="utf-8") as before:
        save(EXAMPLE, path)
        assert "old" in before.read(), "whoever reads the file meanwhile reads the whole old one"
    assert load(path) == EXAMPLE
    assert load(path).state_id == EXAMPLE.state_id
    assert [file.name for file in tmp_path.iterdir()] == ["curriculum.json"]
    text = path.read_text(encoding="utf-8")
    assert "核对价格" in text
    assert list(json.loads(text)) == sorted(json.loads(text))


def test_what_stood_there_survives_a_failed_write(tmp_path: Path) -> None:
    (tmp_path / "curriculum.json").mkdir()
    with pytest.raises(OSError, match=r"curriculum\.json"):
        save(EXAMPLE, tmp_path / "curriculum.json")
    assert [file.name for file in tmp_path.iterdir()] == ["curriculum.json"]


@given(rng=st.randoms(use_true_random=False))
def test_order_in_the_file_changes_nothing(
    document: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, rng: random.Random
) -> None:
    def shuffled(value: Any) -> Any:
        if isinstance(value, list):
            return rng.sample([shuffled(item) for item in value], len(value))
        if isinstance(value, dict):
            return {name: shuffled(value[name]) for name in rng.sample(sorted(value), len(value))}
        return value

    path = tmp_path_factory.getbasetemp() / "shuffled.json"
    path.write_text(json.dumps(shuffled(document)), encoding="utf-8")
    found = load(path)
    assert found == EXAMPLE
    assert [draw(found, str(group)) for group in range(20)] == [draw(EXAMPLE, str(group)) for group in range(20)]


def first(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    """Change the first chunk of a document; None removes a field."""

    def change(document: dict[str, Any]) -> None:
        chunk = document["chunks"][0] | changes
        document["chunks"][0] = {name: value for name, value in chunk.items() if value is not None}

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (first(rho=1.2), r"chunk options, rho is 1.2. Allowed: a probability from 0 to 1"),
        (first(rho=math.nan), "NaN stands for a number. Allowed: finite numbers"),
        (first(alpha=-math.inf), "-Infinity stands for a number"),
        (first(alpha=10**400), "chunk options, alpha is 10000"),
        (first(rho="0.2"), "chunk options, rho is '0.2'"),
        (first(rho=True), "chunk options, rho is True"),
        (first(rho=None), r"chunks\[0\], fields missing is \['rho'\]"),
        (first(note=1), r"chunks\[0\], fields unknown is \['note'\]"),
        (first(chunk_id="way_out"), r"chunks is \['way_out'\]. Allowed: every chunk_id once"),
        (first(chunk_id=""), "chunk_id is ''"),
        (first(text_sha256="abc"), "chunk options, text_sha256 is 'abc'. Allowed: 64 hex digits"),
        (first(rho=0.91), "state_id is '[0-9a-f]{64}'. Allowed: [0-9a-f]{64}, the hash of this content"),
        (lambda d: d.update(q=-0.1), "q is -0.1. Allowed: a probability"),
        (lambda d: d.update(seed=8), "state_id is"),
        (lambda d: d.update(seed=True), "seed is True. Allowed: a whole number"),
        (lambda d: d.update(round=-1), "round is -1"),
        (lambda d: d.update(checkpoint=""), "checkpoint is ''"),
        (lambda d: d.update(schema="shopsimrl-skill-curriculum-v1"), "schema is 'shopsimrl-skill-curriculum-v1'"),
        (lambda d: d.update(path="/x"), r"the file, fields unknown is \['path'\]"),
        (lambda d: d.pop("q"), r"the file, fields missing is \['q'\]"),
        (lambda d: d.update(chunks={}), r"chunks is \{\}. Allowed: a list"),
        (lambda d: d.update(chunks=["a"]), r"chunks\[0\] is 'a'. Allowed: an object"),
    ],
)
def test_a_file_that_cannot_be_right_is_refused(
    document: dict[str, Any], tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    spoiled = json.loads(json.dumps(document))
    change(spoiled)
    path = tmp_path / "curriculum.json"
    path.write_text(json.dumps(spoiled), encoding="utf-8")
    with pytest.raises(ValueError, match=f"curriculum.json: {message}"):
        load(path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000], ids=lambda content: repr(content[:3]))
def test_other_files_are_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "curriculum.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"curriculum\.json: "):
        load(tmp_path / "curriculum.json")
    with pytest.raises(ValueError, match=r"absent\.json: "):
        load(tmp_path / "absent.json")


# A trainer in another environment

BY_PATH = """
import importlib.util
spec = importlib.util.spec_from_file_location("curriculum", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["curriculum"] = module
spec.loader.exec_module(module)
"""
BY_NAME = "import shopskill_lib.curriculum as module"
TRAINER = """
import json, pathlib, sys
{load}
state = module.load(pathlib.Path(sys.argv[2]))
draws = [module.draw(state, str(group)) for group in range(500)]
ours = sorted(name for name in sys.modules if name.startswith(("shopskill_lib", "pydantic", "numpy")))
print(json.dumps([[[d.mode, *d.chunk_ids] for d in draws], state.state_id, ours]))
"""


@pytest.mark.parametrize(
    ("way", "ours"), [(BY_PATH, []), (BY_NAME, ["shopskill_lib", "shopskill_lib.curriculum"])], ids=["path", "name"]
)
def test_a_trainer_without_packages_draws_the_same(tmp_path: Path, way: str, ours: list[str]) -> None:
    save(EXAMPLE, tmp_path / "curriculum.json")
    arguments = [str(FILE), str(tmp_path / "curriculum.json")]
    command = [sys.executable, "-S", "-c", TRAINER.format(load=way), *arguments]
    ran = subprocess.run(command, env={}, cwd=ROOT if ours else tmp_path, capture_output=True, text=True, check=True)
    draws, state_id, modules = json.loads(ran.stdout)
    expected = [draw(EXAMPLE, str(group)) for group in range(500)]
    assert draws == [[found.mode, *found.chunk_ids] for found in expected]
    assert (state_id, modules) == (EXAMPLE.state_id, ours)
