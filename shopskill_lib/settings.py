"""The parameters of a run: one name, one meaning, one type, one default. Notebooks declare the ones they read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from shopskill_lib.errors import ParameterError
from shopskill_lib.files import parse_json, read_text
from shopskill_lib.records import Record

PATHS = ("catalogue", "splits", "draft", "reuse_from", "prompts_dir")
"""Settings that name a file or folder."""


class Settings(Record):
    """All parameters that the protocols read; a notebook's tagged cell overrides the defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    language: Literal["en", "zh"] = "en"
    """Language of the shop, the prompts and the shipped draft."""
    catalogue: str = ""
    """ShopSimulator product file; "" for a generated catalogue."""
    splits: str = ""
    """Split file for `catalogue`; read only with it."""
    catalogue_seed: int = 0
    """Seed of the generated catalogue."""
    n_products: int = Field(20_000, ge=1)
    """Products of the generated catalogue."""
    n_val: int = Field(400, ge=1)
    """Validation tasks of Gate A."""
    n_test: int = Field(400, ge=1)
    """Test tasks of Gate B."""
    allow_overlap: str = ""
    """What splits may share in spite of M2: product, persona, or both."""
    persona: bool = True
    """Whether the policy is told what is known of the shopper."""
    draft: str = ""
    """The skill to measure: skill.md or a JSON list of chunks; "" for the shipped draft."""
    masked_samples: int = Field(1, ge=1)
    """Masked rollouts a task."""
    mask_seed: int = Field(0, ge=0)
    """Seed of the masks (M17)."""
    rollout_seed: int = Field(0, ge=0)
    """Seed of the episodes."""
    reuse_from: str = ""
    """Run folder whose episodes are reused by identity."""
    max_steps: int = Field(30, ge=1)
    """Model turns an episode."""
    policy_url: str = "simulated"
    """Endpoint of the measured model, or `simulated` for the shopper that ships."""
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
    policy_timeout: float = Field(180.0, gt=0.0)
    """Seconds that a reply may take."""
    policy_price_in: float = Field(0.0, ge=0.0)
    """Price of a million prompt tokens; 0 when unknown."""
    policy_price_out: float = Field(0.0, ge=0.0)
    """Price of a million completion tokens; 0 when unknown."""
    policy_concurrency: int = Field(8, ge=1)
    """Episodes at once."""
    prompts_dir: str = ""
    """Folder with prompt texts that replace the shipped ones of the same name."""

    @classmethod
    def of_run(cls, folder: Path) -> "Settings":
        """Take the settings of a run from its `params.json`, whose paths are relative to the run folder.

        Raises:
            InputError: there is no such file, or it is damaged.
            ParameterError: a value is of another type or out of range.
        """
        path = folder / "params.json"
        names = parse_json(read_text(path), str(path))
        return cls.of(names).relative_to(folder)

    def relative_to(self, folder: Path) -> "Settings":
        """Return the settings with their paths, relative ones taken from this folder, made whole."""
        given = {name: getattr(self, name) for name in PATHS if getattr(self, name)}
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
            first = error.errors()[0]
            name = str(first["loc"][0])
            raise ParameterError(
                f"{name} is {first['input']!r}",
                where=f"parameter {name}",
                allowed=first["msg"].removeprefix("Input should be "),
                todo="correct the value",
            ) from error
