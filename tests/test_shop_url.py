"""A run in a shop behind a URL: settings, what is kept of the server, cards without rewards, gates with a note."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from casework import author
from old_servers import old_server
from scripted import buyer, scripted, serve
from v8_fixture import V8, Fault, Reply, Request, v8_server
from v8_shop import PERSONA_TASK, PRODUCTS, STANDARD_TASK

from shopskill_lib import cold_start, distil, gates, online, protocol, status, workbench
from shopskill_lib.agent import Agent, load_prompts
from shopskill_lib.errors import InputError, ParameterError, SetupError
from shopskill_lib.files import write_json
from shopskill_lib.lab import truth
from shopskill_lib.records import Episode
from shopskill_lib.rollouts import run
from shopskill_lib.rolloutset import RolloutSet
from shopskill_lib.settings import Settings
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.servers import FILE
from shopskill_lib.shops.shopsimulator import connect
from shopskill_lib.workbench import Bench

DRAFT = """## Query {#query}

Put every requirement into one query.

## 价格 {#price}

核对所选规格的价格。
"""


class Health:
    """A `before` hook that changes the health document."""

    def __init__(self, **change: Any) -> None:
        self.change, self.servers = change, list[V8]()

    def __call__(self, request: Request) -> Fault | None:
        if request.path != "/healthz":
            return None
        return Fault(Reply(200, json.dumps(self.servers[0].health() | self.change).encode()))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Settings of the fixture's product file with its two tasks, one to train or validate and one to test."""
    (tmp_path / "products.json").write_text(json.dumps(PRODUCTS, ensure_ascii=False), encoding="utf-8")
    splits = {"train": {"task_ids": [STANDARD_TASK]}, "val": {"task_ids": [PERSONA_TASK]}, "test": {"task_ids": []}}
    write_json(tmp_path / "splits.json", {"splits": splits})
    (tmp_path / "draft.md").write_text(DRAFT, encoding="utf-8")
    return {"catalogue": str(tmp_path / "products.json"), "splits": str(tmp_path / "splits.json"), "language": "zh"}


def settings(url: str, files: dict[str, str], **more: Any) -> Settings:
    return Settings.of({"shop_url": url, "n_train": 1, "n_val": 1, "n_test": 1, **files, **more})


def test_settings_name_a_server(files: dict[str, str], tmp_path: Path) -> None:
    with v8_server() as server:
        given = settings(f"{server.url}/api/shop_agent", files)
        bench = workbench.set_up(given, tmp_path / "run")
        shop = bench.agent.shop
        assert shop.fingerprint["shop"] == "shopsimulator v8" and (shop.unscored, shop.note) == ("", "")
        assert "127.0.0.1" not in json.dumps(dict(shop.fingerprint))
        plain = workbench.set_up(settings(server.url, files, persona=False), tmp_path / "run")
        assert bench.tasks("val")[0].persona is not None and plain.tasks("val")[0].persona is None
        with pytest.raises(ParameterError, match="sells a catalogue of its own"):
            workbench.set_up(Settings.of({"shop_url": server.url, "n_products": 1700}), tmp_path / "other")
    with pytest.raises(ParameterError, match="shop_timeout is 0"):
        settings("http://127.0.0.1:9", files, shop_timeout=0.0)


def test_a_generated_catalogue_must_be_the_announced_one(tmp_path: Path) -> None:
    health = Health(fingerprint={"catalogue": "ab" * 32, "tasks": "cd" * 32, "action_limit": 30})
    with v8_server(before=health) as server:
        health.servers.append(server)
        with pytest.raises(SetupError, match="announces another catalogue fingerprint \\(abababababab…\\)"):
            workbench.set_up(Settings.of({"shop_url": server.url, "n_products": 1700}), tmp_path / "run")


def test_an_announced_fingerprint_is_the_shops(files: dict[str, str], tmp_path: Path) -> None:
    """What our own shop says of itself is what its episodes carry, in-process or not."""
    embedded = workbench.set_up(settings("", files), tmp_path / "embedded").agent.shop.fingerprint
    health = Health(fingerprint=dict(embedded))
    with v8_server(before=health) as server:
        health.servers.append(server)
        shop = workbench.set_up(settings(server.url, files), tmp_path / "run").agent.shop
        assert shop.fingerprint == embedded


def test_a_run_is_read_when_its_server_is_gone(files: dict[str, str], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with v8_server() as server:
        given = settings(server.url, files, draft=str(tmp_path / "draft.md"))
        fingerprint = workbench.set_up(given, run_dir).agent.shop.fingerprint
    write_json(run_dir / "params.json", given.model_dump())
    assert set(json.loads((run_dir / FILE).read_text())) >= {"generation", "versions", "unscored"}
    assert "2 episodes owed" in status.report(run_dir)
    bench = workbench.set_up(given, run_dir)
    assert bench.agent.shop.fingerprint == fingerprint
    with pytest.raises(SetupError, match="no server answers"):
        workbench.set_up(given, tmp_path / "fresh")
    (run_dir / FILE).write_text("{}")
    with pytest.raises(InputError, match=r"shop\.json: the file is damaged"):
        workbench.set_up(given, run_dir)


def test_a_run_stays_with_its_server(files: dict[str, str], tmp_path: Path) -> None:
    with v8_server() as server:
        workbench.set_up(settings(server.url, files), tmp_path / "run")
    health = Health(environment_version="shopsimulator-paper-aligned-v9")
    with v8_server(slots=4, before=health) as server:
        health.servers.append(server)
        with pytest.raises(SetupError, match=r"another server answers than the run began with.*v9.*Allowed: .*v8"):
            workbench.set_up(settings(server.url, files), tmp_path / "run")
    with v8_server(slots=5) as server:  # more slots are the same server
        workbench.set_up(settings(server.url, files), tmp_path / "run")


def test_no_truth_is_computed_on_a_server(files: dict[str, str], tmp_path: Path) -> None:
    write_json(tmp_path / "params.json", settings("http://127.0.0.1:9", files).model_dump())
    with pytest.raises(ParameterError, match=r"shop_url http://127\.0\.0\.1:9"):
        truth.open_run(tmp_path)


@pytest.fixture
def unscored(files: dict[str, str], tmp_path: Path) -> Iterator[Bench]:
    """A run on a server whose rewards cannot be mapped."""
    health = Health(primary_reward="r_loose")
    with v8_server(before=health) as server, serve(author) as model:
        health.servers.append(server)
        names = {"author_url": model.url, "author_model": "m", "author_checkpoint": "c"}
        names |= {"draft": str(tmp_path / "draft.md")}
        bench = protocol.set_up(settings(server.url, files, **names), tmp_path / "run")
        yield replace(bench, agent=Agent(scripted(buyer), bench.agent.shop, load_prompts("zh")))


def test_a_shop_without_rewards_gives_cards(unscored: Bench) -> None:
    found = cold_start.collect(unscored)
    assert [(analysis.channel, len(analysis.cards)) for analysis in found] == [("success", 1)]
    assert "outcome not recorded; taken as successful demonstrations" in str(found)
    assert "its primary reward is 'r_loose'" in found.verdict() and found.simulated
    (episode,) = read_episodes(unscored.folder)
    assert (episode.status, episode.ending, episode.reward) == ("unscored", "purchase", None)
    assert episode.purchase is not None and episode.finished
    assert cold_start.collect(unscored) == found
    assert len(read_episodes(unscored.folder)) == 1, "an unscored episode is not owed"
    rolled = train_set(unscored)
    assert rolled.mean_reward is None and rolled.scored == () and len(rolled.finished) == 1
    assert rolled.owed == rolled.missing == ()
    assert "no mean over 0 scored of 1 episodes, 1 without a reward" in str(rolled)
    assert list(rolled.to_frame()["state"]) == ["unscored"]


def read_episodes(folder: Path) -> list[Episode]:
    lines = (folder / "episodes" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    return [Episode.model_validate_json(line) for line in lines]


def train_set(bench: Bench) -> RolloutSet:
    plan = distil.plan_train(bench, distil.seed_skill(bench))
    return run(plan, bench.agent, bench.folder, rollout_seed=0, stage="cards")["train"]


def test_a_shop_without_rewards_measures_nothing(unscored: Bench) -> None:
    for measure in (protocol.gate_a, protocol.gate_b, online.rounds):
        with pytest.raises(SetupError, match=r"no reward of this server can be used: its primary reward is 'r_loose'"):
            measure(unscored)
    assert not (unscored.folder / "episodes").exists() and not (unscored.folder / "masks.csv").exists()


def test_episodes_without_a_purchase_demonstrate_nothing(unscored: Bench) -> None:
    lost = replace(unscored, agent=replace(unscored.agent, max_steps=1))
    found = cold_start.collect(lost)
    assert list(found) == [] and "1 episodes without a purchase left out" in str(found)


def test_a_gate_on_the_original_says_that_its_reward_varies(shops: dict[str, EmbeddedShop], tmp_path: Path) -> None:
    (tmp_path / "draft.md").write_text(DRAFT, encoding="utf-8")
    given = Settings.of({"n_val": 12, "n_test": 2, "draft": str(tmp_path / "draft.md")})
    with old_server(shops["en"], "original", slots=4) as server:
        shop = connect(server.url, shops["en"].catalogue, tmp_path / "run", threads=4)
        agent = Agent(scripted(buyer), shop, load_prompts("en"))
        bench = Bench(given, tmp_path / "run", agent, shop.catalogue, protocol.read_draft(given, tmp_path))
        pairs = gates.read_observations(protocol.gate_a(bench), bench.folder / protocol.INTERVENTIONS, 0.0)
        gate = gates.fit_gate(pairs, resamples=100)
    assert "note: the original ShopSimulator draws price and budget at random for each of its slots" in str(gate)
    assert not server.taken


def test_reuse_takes_unscored_episodes_too(unscored: Bench, tmp_path: Path) -> None:
    train_set(unscored)
    plan = distil.plan_train(unscored, distil.seed_skill(unscored))
    other = run(plan, unscored.agent, tmp_path / "other", rollout_seed=0, stage="cards", reuse_from=unscored.folder)[
        "train"
    ]
    assert len(other.finished) == 1 and "reused_from" in (tmp_path / "other" / "episodes" / "train.jsonl").read_text()
