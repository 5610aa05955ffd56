"""`shopskill doctor` on a good set-up and on broken ones: real servers on loopback, real files, the real command."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from old_servers import old_server

from shopskill_lib import checkup, doctor, protocol, workbench
from shopskill_lib.doctor import Finding
from shopskill_lib.errors import SetupError
from shopskill_lib.settings import Settings
from shopskill_lib.shops.catalog import load_catalogue
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.generator import generate_catalogue
from shopskill_lib.simulated import wire
from shopskill_lib.simulated.chat import Reply

ROOT = Path(__file__).parents[1]

Json = dict[str, Any]
Change = Callable[[Json, Reply], Reply]
"""What a broken server makes of a request and its right answer."""

SIZE = {"n_products": 2000, "n_train": 20, "n_val": 20, "n_test": 20, "rounds": 1, "n_groups": 2, "n_gap": 0}


def unchanged(request: Json, reply: Reply) -> Reply:  # noqa: ARG001 - a Change
    return reply


class Faulty(wire.Endpoint):
    """The simulated models behind a server with a habit."""

    def __init__(self, change: Change, listed: Json | None) -> None:
        super().__init__()
        self.change, self.listed, self.asked = change, listed, list[Json]()

    def answer(self, method: str, path: str, body: bytes) -> Reply:
        if method == "GET":
            models = {"data": [{"id": "simulated-shopper", **(self.listed or {})}, {"id": "simulated-author"}]}
            return Reply(404, {}) if self.listed is None else Reply(200, models)
        request = json.loads(body)
        self.asked.append(request)
        return self.change(request, super().answer(method, path, body))


@contextmanager
def served(change: Change = unchanged, listed: Json | None = None) -> Iterator[tuple[str, Faulty]]:
    """Serve the simulated models with a habit, over HTTP; without `listed` there is no list of models."""
    server = wire.Server()
    faulty = server._server.endpoint = Faulty(change, listed)
    with server:
        yield server.base_url, faulty


def message_of(reply: Reply) -> Json:
    message: Json = reply.body["choices"][0]["message"]
    return message


def searching(query: str, request: Json, reply: Reply) -> Reply:
    """The reply with this query instead; one that was cut off stays as it is."""
    if request["max_tokens"] > 1:
        message_of(reply)["tool_calls"][0]["function"]["arguments"] = json.dumps({"query": query})
        reply.body["usage"]["completion_tokens"] = len(query)
    return reply


Examine = Callable[..., dict[str, Finding]]

GENERATED = functools.cache(generate_catalogue)


@pytest.fixture
def run_dir(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Path:
    """A run folder of the test's own, in a folder where all tests of the file keep their search index."""
    return tmp_path_factory.getbasetemp() / f"doctor-{tmp_path.name}"


@pytest.fixture
def examine(tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Examine:
    """Examine a set-up of these parameters in this process; name -> finding. Catalogue and index are made once."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(workbench, "generate_catalogue", GENERATED)

    def run(*arguments: str, **given: Any) -> dict[str, Finding]:
        params = tmp_path / "lab.yaml"
        params.write_text(json.dumps(SIZE | given, ensure_ascii=False), encoding="utf-8")
        options = doctor.parser().parse_args([str(params), "--out", str(run_dir), *arguments])
        case = checkup.Case(options)
        with case.opened:
            return dict(checkup.examine(case))

    return run


def marks(found: dict[str, Finding]) -> dict[str, str]:
    return {name: finding.mark for name, finding in found.items()}


def test_a_good_set_up_by_the_command(tmp_path: Path) -> None:
    params = tmp_path / "lab.yaml"
    with process("shopskill_lib.simulated") as url:
        params.write_text(json.dumps(SIZE | {"policy_url": url, "author_url": url, "trainer": "none"}), "utf-8")
        command = [sys.executable, "-m", "shopskill_lib", "doctor", str(params), "--out", str(tmp_path / "run")]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "90"}
        )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [name for name in ("packages", *(check.name for check in checkup.CHECKS)) if name not in done.stdout] == []
    assert max(map(len, lines)) <= 90
    assert all(line.startswith(("ok  ", "warning  ", "not checked  ", " ", "no check failed")) for line in lines)
    settings = Settings.of(SIZE | {"policy_url": url})
    bench = workbench.set_up(settings, tmp_path / "run")
    assert protocol.foresee(bench, protocol.plan_bare(bench, "val")).kept == doctor.SAMPLE


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_good_set_up_in_both_languages(language: str, examine: Examine) -> None:
    found = examine("--sample", "4", language=language)
    open_ends = {"author context": "not checked"}
    assert marks(found) == {check.name: open_ends.get(check.name, "ok") for check in checkup.CHECKS}, found
    assert "bought gold and earned 1.00" in found["shop episode"].found
    assert "simulated" in found["headroom"].found
    assert "01_cards 20" in found["forecast"].found and "03_gate_a 36" in found["forecast"].found


@contextmanager
def process(*command: str) -> Iterator[str]:
    """Run a server of ours as a process of its own, until it is killed; its first line ends or begins with its URL."""
    with subprocess.Popen(
        [sys.executable, "-m", *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as running:
        assert running.stdout is not None
        line = running.stdout.readline()
        try:
            yield next(word.rstrip(",") for word in line.split() if word.startswith("http"))
        finally:
            running.kill()


def test_a_shop_server_and_what_becomes_of_it(examine: Examine, run_dir: Path) -> None:
    serve = ("shopskill_lib.shops.serve", "--port", "0", "--slots", "4", "--products", "2000")
    with process(*serve) as url:
        found = examine("--sample", "3", shop_url=url)
        assert found["shop"].mark == "warning" and "4 slots, 4 free" in found["shop"].found
        assert found["shop episode"].mark == "ok" and found["headroom"].mark == "ok", found
        assert "with 4 at once" in found["forecast"].found
        assert examine("--sample", "0", shop_url=url, policy_concurrency=4, author_concurrency=4)["shop"].mark == "ok"
        found = examine("--sample", "3", "--out", f"{run_dir}-other", shop_url=url, catalogue_seed=1)
        assert found["shop episode"].mark == "fails" and "another catalogue" in found["shop episode"].found
        assert found["headroom"] == Finding("not checked", "because shop episode failed")
    found = examine("--sample", "3", shop_url=url, shop_timeout=2.0)
    assert found["shop"].mark == "fails" and found["shop episode"].mark == "not checked"
    assert found["policy tool call"].mark == "ok"


def splits_of(folder: Path, train: list[str], val: list[str], test: list[str]) -> str:
    """A split file, and its path."""
    splits = {"train": {"task_ids": train}, "val": {"task_ids": val}, "test": {"task_ids": test}}
    (folder / "splits.json").write_text(json.dumps({"splits": splits}), encoding="utf-8")
    return str(folder / "splits.json")


@pytest.mark.parametrize("generation", ["fork", "original"])
def test_a_shop_of_an_older_generation(
    generation: Literal["fork", "original"], real_files: Path, tmp_path: Path, examine: Examine
) -> None:
    goods = real_files / "items_eval_train.json"
    real = load_catalogue(goods)
    ids = list(real.tasks)
    given: Json = {"n_train": 2, "n_val": 3, "n_test": 3, "language": "zh", "catalogue": str(goods)}
    given["splits"] = splits_of(tmp_path, ids[:2], ids[2:5], ids[5:8])
    with old_server(EmbeddedShop(real, tmp_path), generation) as old:
        found = examine("--sample", "3", shop_url=old.url, **given)
    assert old.taken == set() and found["headroom"].mark == "warning", found
    assert f"ShopSimulator {generation}" in found["shop"].found and "slots are not told" in found["shop"].found
    assert found["shop"].mark == ("warning" if generation == "original" else "ok")
    assert ("at random" in found["shop"].found) == (generation == "original")
    assert "bought gold and earned 1.00" in found["shop episode"].found


def test_a_model_server_that_is_down(examine: Examine) -> None:
    with served() as (url, _):
        pass
    found = examine(policy_url=url, trainer="none")
    assert found["policy server"].mark == "fails" and url in found["policy server"].found
    assert found["shop episode"].mark == "ok" and found["author tool call"].mark == "ok"
    assert found["headroom"] == Finding("not checked", "because policy server failed")


def test_a_failing_check_is_exit_code_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (tmp_path / "lab.yaml").write_text("n_vall: 3\n", encoding="utf-8")
    with pytest.raises(SetupError, match="1 check failed: parameters"):
        checkup.run(doctor.parser().parse_args([str(tmp_path / "lab.yaml")]))


def test_an_unknown_parameter(examine: Examine) -> None:
    found = examine(n_vall=3)
    assert found["parameters"].mark == "fails" and "'n_vall'" in found["parameters"].found
    assert "n_val" in found["parameters"].remedy
    assert set(marks(found).values()) == {"fails", "not checked"}


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"draft": "nowhere/skill.md"}, "nowhere/skill.md"),
        ({"prompts_dir": "docs"}, "prompts_dir"),
        ({"policy_url": "http://127.0.0.1:1/v1"}, "trainer"),
        ({"catalogue": "README.md"}, "splits"),
        ({"n_val": "400"}, "n_val"),
    ],
)
def test_parameters_that_cannot_be_used(given: Json, word: str, examine: Examine) -> None:
    found = examine(**given)
    assert word in found["parameters"].found + found["splits"].found
    assert "fails" in (found["parameters"].mark, found["splits"].mark)


def test_a_name_that_the_server_does_not_know(examine: Examine) -> None:
    with served(listed={}) as (url, _):
        found = examine(policy_url=url, policy_model="qwen", policy_checkpoint="q1", trainer="none")
    assert found["policy server"].mark == "warning" and "simulated-shopper" in found["policy server"].found
    assert found["policy tool call"].mark == "fails" and "does not know the model" in found["policy tool call"].found
    assert found["policy seed"].mark == "not checked"


def test_a_server_without_tool_calls(examine: Examine) -> None:
    def words(request: Json, reply: Reply) -> Reply:  # noqa: ARG001 - a Change
        message_of(reply).update(content='search[外套] {"query": "jacket"}', tool_calls=None)
        return reply

    with served(words) as (url, _):
        found = examine(policy_url=url, trainer="none")
    assert found["policy server"].mark == "ok" and "lists no models" in found["policy server"].found
    assert found["policy tool call"].mark == "fails"
    assert "0 of 4 answers" in found["policy tool call"].found and "words" in found["policy tool call"].found
    assert "tool-call-parser" in found["policy tool call"].remedy


def test_a_server_without_usage(examine: Examine) -> None:
    def uncounted(request: Json, reply: Reply) -> Reply:  # noqa: ARG001 - a Change
        del reply.body["usage"]
        return reply

    with served(uncounted) as (url, _):
        found = examine("--sample", "2", policy_url=url, trainer="none")
    assert found["policy usage"].mark == "warning" and "usage is missing in 4 of 4" in found["policy usage"].found
    assert "cannot be told" in found["policy context"].found
    assert found["forecast"].mark == "warning" and "unknown" in found["forecast"].found


def test_a_seed_that_is_ignored_and_a_cache(examine: Examine) -> None:
    seen: list[Reply] = []

    def drawn(request: Json, reply: Reply) -> Reply:
        seen.append(reply)
        return searching(f"外套 {len(seen)}", request, reply)

    def cached(request: Json, reply: Reply) -> Reply:
        return searching("外套", request, reply)

    with served(drawn) as (url, _):
        found = examine("--sample", "0", policy_url=url, trainer="none")
    assert found["policy seed"].mark == "warning" and "not honoured" in found["policy seed"].found
    assert found["policy weights"].mark == "warning" and "different ways" in found["policy weights"].found
    with served(cached) as (url, _):
        found = examine("--sample", "0", policy_url=url, trainer="none")
    assert found["policy seed"].mark == "warning" and "one and the same reply" in found["policy seed"].found


def test_other_weights_under_the_same_name(examine: Examine) -> None:
    def trained(request: Json, reply: Reply) -> Reply:
        return searching("雨衣 raincoat", request, reply) if "search" in str(request["tools"]) else reply

    with served() as (url, _):
        assert examine("--sample", "0", policy_url=url, trainer="none")["policy weights"].mark == "ok"
    with served(trained) as (url, _):
        found = examine("--sample", "2", policy_url=url, trainer="none")
    assert found["policy weights"].mark == "fails" and "fixed questions otherwise" in found["policy weights"].found
    assert found["headroom"] == Finding("not checked", "because policy weights failed")


def short(most: int) -> Change:
    """A context of so many tokens, refused as servers refuse."""

    def change(request: Json, reply: Reply) -> Reply:  # noqa: ARG001 - a Change
        tokens = reply.body["usage"]["prompt_tokens"]
        error = {"error": {"code": "context_length_exceeded", "message": f"maximum context length is {most} tokens"}}
        return Reply(400, error) if tokens > most else reply

    return change


def test_a_context_that_is_too_short(examine: Examine) -> None:
    common = {"trainer": "none", "draft": "shipped"}
    with served(short(2_000)) as (url, _):
        found = examine("--sample", "0", policy_url=url, **common)
    assert found["policy context"].mark == "fails" and "draft of 16 chunks" in found["policy context"].found
    with served(short(4_500), {"max_model_len": 3_000}) as (url, _):
        found = examine("--sample", "0", policy_url=url, **common)
    assert found["policy context"].mark == "fails" and "3,000 (max_model_len)" in found["policy context"].found


def test_a_context_for_usual_drafts_only(examine: Examine) -> None:
    with served(short(8_000), {"meta": {"n_ctx_train": 8_000}}) as (url, _):
        found = examine("--sample", "0", policy_url=url, trainer="none")
    assert found["policy context"].mark == "warning"
    assert "16,384" in found["policy context"].found and "meta.n_ctx_train" in found["policy context"].found


def test_a_server_that_cuts_prompts_in_silence(examine: Examine) -> None:
    def cut(request: Json, reply: Reply) -> Reply:  # noqa: ARG001 - a Change
        usage = reply.body["usage"]
        usage["prompt_tokens"] = min(usage["prompt_tokens"], 700)
        return reply

    with served(cut) as (url, _):
        found = examine("--sample", "0", policy_url=url, trainer="none", draft="shipped")
    assert found["policy context"].mark == "fails" and "in silence" in found["policy context"].found


def test_a_context_too_short_for_the_author(examine: Examine) -> None:
    with served(listed={"id": "simulated-author", "context_length": 32_768}) as (url, _):
        found = examine("--sample", "0", author_url=url)
    assert found["author context"].mark == "fails" and "32,768 (context_length)" in found["author context"].found


def test_a_key_that_is_not_set(examine: Examine) -> None:
    found = examine("--sample", "0", policy_key_env="NO_SUCH_KEY_HERE")
    assert found["policy server"].mark == "fails" and "NO_SUCH_KEY_HERE" in found["policy server"].found
    assert found["shop episode"].mark == "ok"


def test_splits_that_overlap(real_files: Path, tmp_path: Path, examine: Examine) -> None:
    ids = [json.loads(line)["task_id"] for line in (real_files / "tasks.jsonl").read_text("utf-8").splitlines()]
    splits = splits_of(tmp_path, ids[:3], ids[2:6], ids[6:9])
    found = examine(catalogue=str(real_files / "items_eval_train.json"), splits=splits, language="zh")
    assert found["splits"].mark == "fails" and str(ids[2]) in found["splits"].found
    assert marks(found)["shop episode"] == "not checked" and marks(found)["policy tool call"] == "ok"


def test_fewer_tasks_than_asked_for(examine: Examine) -> None:
    found = examine("--sample", "0", n_val=5_000)
    assert found["splits"].mark == "fails" and "5000 val tasks" in found["splits"].found


def test_splits_that_differ_in_kind(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    made = generate_catalogue(0, "en", products=2000)
    tasks = {
        name: task.model_copy(update={"options": (), "price_upper": None}) if task.split == "test" else task
        for name, task in made.tasks.items()
    }
    changed = type(made)(language="en", products=made.products, tasks=tasks)
    monkeypatch.setattr(workbench, "open_catalogue", lambda settings: changed)  # noqa: ARG005 - its signature
    found = examine("--sample", "0")
    assert found["splits"].mark == "warning"
    assert "differ in options, a price limit" in found["splits"].found and "/0%" in found["splits"].found


def test_a_run_folder_that_cannot_be_written(tmp_path: Path, examine: Examine) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    found = examine("--sample", "2", "--out", str(tmp_path / "file" / "run"))
    assert found["disk"].mark == "fails" and found["headroom"].mark == "not checked"
    assert found["policy tool call"].mark == "ok"


def test_a_disk_that_is_too_small(examine: Examine) -> None:
    found = examine("--sample", "0", n_test=1_000_000_000)
    assert found["disk"].mark == "fails" and "GB" in found["disk"].found and "--out" in found["disk"].remedy


def test_no_headroom_below_and_above(examine: Examine) -> None:
    def lost(request: Json, reply: Reply) -> Reply:
        offered = [tool["function"]["name"] for tool in request["tools"]]
        call = {"name": offered[0], "arguments": '{"query": "外套"}' if "search" in offered else '{"value": "x"}'}
        message_of(reply)["tool_calls"] = [{"id": "c", "type": "function", "function": call}]
        return reply

    with served(lost) as (url, _):
        found = examine("--sample", "4", policy_url=url, trainer="none", max_steps=3)
    assert found["headroom"].mark == "warning" and "0 of 4" in found["headroom"].found
    assert "interval 0% to 49%" in found["headroom"].found and "action_limit 4" in found["headroom"].found
    assert "easier tasks" in found["headroom"].remedy and "larger --sample" in found["headroom"].remedy


def test_without_a_sample_nothing_is_bought(run_dir: Path, examine: Examine) -> None:
    found = examine("--sample", "0")
    assert found["headroom"] == Finding("not checked", "because --sample is 0: no episode was run")
    assert found["forecast"] == found["headroom"]
    assert (run_dir / "probes.json").exists() and not (run_dir / "episodes").exists()


def test_what_a_run_does_not_use_is_not_checked(gate_csv: Callable[..., Path], examine: Examine) -> None:
    found = examine("--sample", "0", "--only", "03_gate_a", "-p", "draft=shipped")
    assert "author" in found["author server"].found and found["author server"].mark == "not checked"
    assert "draft of 16" in found["parameters"].found
    found = examine("--only", "03_gate_a", "-p", f"observations={gate_csv()}")
    assert "file" in found["shop"].found and found["policy server"].mark == "not checked"


def project_of(folder: Path, *dependencies: str) -> Path:
    """A project with these dependencies, pinned to major version 1."""
    names = [text.split(">=")[0] for text in dependencies]
    listed = ", ".join(json.dumps(text) for text in dependencies)
    (folder / "pyproject.toml").write_text(f"[project]\ndependencies = [{listed}]\n", encoding="utf-8")
    (folder / "constraints.txt").write_text("".join(f"{name}==1.9\n" for name in names), encoding="utf-8")
    return folder


def test_packages_that_are_missing_old_or_untested(tmp_path: Path) -> None:
    missing = doctor.packages(project_of(tmp_path, "no-such-package>=1.0", "pyyaml>=999.1", "pydantic>=2.0"))
    assert missing.mark == "fails" and "no-such-package is not installed" in missing.found
    assert "999.1 or later" in missing.found and "pydantic" not in missing.found
    untested = doctor.packages(project_of(tmp_path, "pyyaml>=5.0"))
    assert untested.mark == "warning" and "(pinned 1.9)" in untested.found


def test_a_package_that_cannot_be_imported_by_the_command(tmp_path: Path) -> None:
    (tmp_path / "jupyterlab.py").write_text("raise ImportError('built for another system')\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "shopskill_lib.doctor", "params/smoke.yaml"],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert done.returncode == 2
    assert "jupyterlab cannot be imported (ImportError: built for another system)" in " ".join(done.stdout.split())
    assert "not checked  everything else" in done.stdout
    assert "Traceback" not in done.stderr and "packages" in done.stderr
