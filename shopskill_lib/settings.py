"""The parameters of a run: one name, one meaning, one type, one default. Notebooks declare the ones they read."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError, model_validator

from shopskill_lib.errors import ParameterError
from shopskill_lib.files import read_json
from shopskill_lib.masks import Design
from shopskill_lib.records import CallProtocol, Record, ToolChoice

PATHS = ("catalogue", "splits", "seed_skill", "draft", "reuse_from", "prompts_dir")
"""Settings that name a file or folder."""

SHIPPED = "shipped"
"""The `draft` that comes with the library, in place of a path."""


class Settings(Record):
    """All parameters that the protocols read; a notebook's tagged cell overrides the defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    language: Literal["en", "zh"] = "en"
    """Language of the shop, the prompts and the shipped draft."""
    shop_url: str = ""
    """Base URL of a ShopSimulator server, with or without its route; "" for the embedded shop."""
    shop_timeout: float = Field(60.0, gt=0.0)
    """Seconds that the server's answer may take, waiting for a slot included."""
    catalogue: str = ""
    """ShopSimulator product file, of the server's as well; "" for a generated catalogue."""
    splits: str = ""
    """Split file for `catalogue`; read only with it."""
    catalogue_seed: int = 0
    """Seed of the generated catalogue."""
    n_products: int = Field(20_000, ge=1)
    """Products of the generated catalogue."""
    n_train: int = Field(400, ge=1)
    """Training tasks that cards are made from."""
    n_val: int = Field(400, ge=1)
    """Validation tasks of Gate A."""
    n_test: int = Field(400, ge=1)
    """Test tasks of Gate B."""
    allow_overlap: str = ""
    """What splits may share in spite of M2: product, persona, or both."""
    persona: bool = True
    """Whether the policy is told what is known of the shopper."""
    seed_skill: str = ""
    """Skill that the training rollouts carry and the compiler may rewrite; "" for none."""
    max_cards: int = Field(2, ge=1)
    """Most success cards of one trajectory."""
    audit_rounds: int = Field(20, ge=2)
    """Most model calls of one failure audit."""
    audit_tokens: int = Field(400_000, ge=1)
    """Most tokens, prompt and completion, of one failure audit."""
    context_tokens: int = Field(100_000, ge=1000)
    """Tokens that a prompt to the author model may have; beyond, pages are shortened and cards merged in a tree."""
    cap: int = Field(16, ge=1, le=16)
    """Most factors of the initial draft (M16)."""
    draft: str = ""
    """The skill to measure: skill.md, a JSON list of chunks or the pool.json of an import, or `shipped`; "" for the one
    compiled in the run."""
    skill: str = ""
    """What Gate B tests: an online round as `online/round_001`; "" for the skill that Gate A selected."""
    masked_samples: int = Field(1, ge=1)
    """Masked rollouts a task."""
    n_stages: int = Field(1, ge=1, le=10)
    """Parts of the validation tasks, after each of which Gate A may be looked at for labels (METHOD section 13)."""
    mask_design: Design = "independent"
    """How masks hang together: within a task, between tasks where balanced or D-optimal; the first two need pairs."""
    mask_seed: int = Field(0, ge=0)
    """Seed of the masks (M17)."""
    rollout_seed: int = Field(0, ge=0)
    """Seed of the episodes."""
    reuse_from: str = ""
    """Run folder whose episodes are reused by identity."""
    max_steps: int = Field(30, ge=1)
    """Model turns an episode."""
    policy_url: str = "simulated"
    """Endpoint of the measured model, several separated by spaces, or `simulated` for the shopper that ships."""
    policy_model: str = "simulated-shopper"
    """Model name at the endpoint."""
    policy_checkpoint: str = "simulated-shopper-1"
    """Identifier of the frozen weights, carried by every record."""
    policy_key_env: str = ""
    """Name of the environment variable that holds the key; "" for none."""
    policy_temperature: float = Field(0.7, ge=0.0)
    """Sampling temperature."""
    policy_max_tokens: int = Field(512, ge=1)
    """Longest reply, in tokens."""
    policy_send_seed: bool = True
    """Whether calls carry their seed."""
    policy_protocol: CallProtocol = "tools"
    """How it calls: `tools`, or for servers without them `json_schema` and `json`."""
    policy_tool_choice: ToolChoice = "auto"
    """Whether the server is asked to enforce a call."""
    policy_extra_body: str = ""
    """Further fields of every request, a JSON object; "" for none."""
    policy_stream: bool = False
    """Whether answers are streamed."""
    policy_timeout: float = Field(180.0, gt=0.0)
    """Seconds that a reply may take."""
    policy_price_in: float = Field(0.0, ge=0.0)
    """Price of a million prompt tokens; 0 when unknown."""
    policy_price_out: float = Field(0.0, ge=0.0)
    """Price of a million completion tokens; 0 when unknown."""
    policy_concurrency: int = Field(8, ge=1)
    """Episodes at once."""
    episode_timeout: float = Field(3600.0, gt=0.0)
    """Seconds that an episode may take, all waiting included; then it has failed and is owed again."""
    author_url: str = "simulated"
    """Endpoint of the analysts' and compiler's model, several separated by spaces, or `simulated` for the author that
    ships."""
    author_model: str = "simulated-author"
    """Model name at the endpoint."""
    author_checkpoint: str = "simulated-author-1"
    """Identifier of the author's weights."""
    author_key_env: str = ""
    """Name of the environment variable that holds the key; "" for none."""
    author_temperature: float = Field(0.6, ge=0.0)
    """Sampling temperature."""
    author_max_tokens: int = Field(16_384, ge=1)
    """Longest reply, in tokens."""
    author_send_seed: bool = True
    """Whether calls carry their seed."""
    author_protocol: CallProtocol = "tools"
    """How it calls: `tools`, or for servers without them `json_schema` and `json`."""
    author_tool_choice: ToolChoice = "auto"
    """Whether the server is asked to enforce a call."""
    author_extra_body: str = ""
    """Further fields of every request, a JSON object; "" for none."""
    author_stream: bool = False
    """Whether answers are streamed."""
    author_timeout: float = Field(300.0, gt=0.0)
    """Seconds that a reply may take."""
    author_price_in: float = Field(0.0, ge=0.0)
    """Price of a million prompt tokens; 0 when unknown."""
    author_price_out: float = Field(0.0, ge=0.0)
    """Price of a million completion tokens; 0 when unknown."""
    author_concurrency: int = Field(8, ge=1)
    """Analyses at once."""
    rounds: int = Field(2, ge=1)
    """Online rounds."""
    n_groups: int = Field(24, ge=1)
    """Groups a round, one training task each."""
    group_size: int = Field(4, ge=2)
    """Rollouts a group, all under one treatment (M26)."""
    q: float = Field(0.2, ge=0.0, le=1.0)
    """Probability that a group is skill-free."""
    rho_min: float = Field(0.2, ge=0.0, le=1.0)
    """Least probability that a chunk is shown in a group (M29)."""
    rho_max: float = Field(0.9, ge=0.0, le=1.0)
    """Largest one; the chunk of the largest estimate has it."""
    max_candidates: int = Field(6, ge=0)
    """Most additions and rewrites a round (M28)."""
    n_gap: int = Field(100, ge=0)
    """Validation tasks that measure the internalization gap with the whole skill; 0 for none."""
    trainer: Literal["simulated", "none"] = "simulated"
    """Who trains between groups and gate: the simulated learner, or nobody (the checkpoint stays)."""
    prompts_dir: str = ""
    """Folder with prompt texts that replace the shipped ones of the same name."""

    @model_validator(mode="after")
    def _rho_in_order(self) -> "Settings":
        """Refuse a least probability above the largest one."""
        if self.rho_min > self.rho_max:
            raise ValueError(f"rho_min {self.rho_min} is above rho_max {self.rho_max}")
        return self

    @classmethod
    def of_run(cls, folder: Path) -> "Settings":
        """Take the settings of a run from its `params.json`, whose paths are relative to the run folder.

        Raises:
            InputError: there is no such file, or it is damaged.
            ParameterError: a value is of another type or out of range.
        """
        path = folder / "params.json"
        names = read_json(path)
        return cls.of(names).relative_to(folder)

    def relative_to(self, folder: Path) -> "Settings":
        """Return the settings with their paths, relative ones taken from this folder, made whole."""
        given = {name: getattr(self, name) for name in PATHS if getattr(self, name) not in ("", SHIPPED)}
        return self.model_copy(update={name: str((folder / value).resolve()) for name, value in given.items()})

    @classmethod
    def of(cls, names: Mapping[str, Any]) -> "Settings":
        """Take the settings among a notebook's names (`Settings.of(globals())`) and check their types.

        Raises:
            ParameterError: a value is of another type or out of range.
        """
        given = {name: names[name] for name in cls.model_fields if name in names}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise _refusal(error) from error

    @classmethod
    def of_texts(cls, texts: Mapping[str, str], names: Collection[str]) -> "Settings":
        """Read settings typed on a command line.

        Args:
            texts: name -> value as text.
            names: settings that the command reads; any other is refused.

        Raises:
            ParameterError: a name is none of these, or a value is of another type or out of range.
        """
        strange = sorted(set(texts) - set(names))
        if strange:
            raise ParameterError(
                f"there is no parameter {strange[0]!r} here",
                where="-p",
                allowed=", ".join(sorted(names)),
                todo="write -p NAME=VALUE with one of these names",
            )
        try:
            return cls.model_validate_strings(dict(texts), strict=False)
        except ValidationError as error:
            raise _refusal(error) from error


def _refusal(error: ValidationError) -> ParameterError:
    first = error.errors()[0]
    if not first["loc"]:
        return ParameterError(
            first["msg"].removeprefix("Value error, "),
            where="rho_min, rho_max",
            allowed="rho_min <= rho_max",
            todo="swap them",
        )
    name = str(first["loc"][0])
    return ParameterError(
        f"{name} is {first['input']!r}",
        where=f"parameter {name}",
        allowed=first["msg"].removeprefix("Input should be "),
        todo="correct the value",
    )
