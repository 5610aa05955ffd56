"""A model as the parameters name it: where it is, how it is asked, and what of that a result depends on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from shopskill_lib.errors import ParameterError
from shopskill_lib.records import CallProtocol, ModelIdentity, ToolChoice, Usage, canonical

SIMULATED = "simulated"
"""The url of the model that needs no server; names of simulated models begin with it as well."""

_OWN = {
    *("messages", "model", "temperature", "max_tokens", "seed", "n", "stream", "stream_options"),
    *("tools", "tool_choice", "functions", "function_call", "response_format"),
}
"""Fields of a request that `extra_body` may not hold."""

OTHER_NAME = "max_completion_tokens"
"""What some servers call `max_tokens`; in `extra_body` it takes that field's place."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model as the parameters name it.

    Attributes:
        url: base URL up to and with ``/v1``, several of the same model separated by spaces, or ``simulated``.
        model: name of the model on that server.
        checkpoint: identifier of the frozen weights.
        key_variable: name of the environment variable that holds the key; "" for none.
        temperature: sampling temperature.
        max_tokens: most tokens of one reply.
        send_seed: whether the call's seed is sent.
        tool_choice: whether the server is asked to enforce a call; not every server does.
        protocol: how the model calls; ``json_schema`` and ``json`` are for servers without tools.
        extra_body: further fields of every request.
        stream: whether answers are streamed; a reply is the same either way.
        timeout: seconds that an answer may take, from the request to its last byte.
        price_in: price of a million prompt tokens; 0 when unknown.
        price_out: price of a million completion tokens; 0 when unknown.
    """

    url: str
    model: str
    checkpoint: str
    key_variable: str = ""
    temperature: float = 0.0
    max_tokens: int = 512
    send_seed: bool = True
    tool_choice: ToolChoice = "auto"
    protocol: CallProtocol = "tools"
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = False
    timeout: float = 180.0
    price_in: float = 0.0
    price_out: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values that no endpoint can have."""
        own = sorted(_OWN & self.extra_body.keys())
        problems = (
            (self.url != SIMULATED and not _are_urls(self.urls), "url", "simulated, or different http(s) URLs"),
            (self.tool_choice not in get_args(ToolChoice), "tool_choice", ", ".join(get_args(ToolChoice))),
            (
                self.tool_choice == "required" and self.protocol != "tools",
                "tool_choice",
                "auto: a call in text cannot be enforced by tool_choice",
            ),
            (self.protocol not in get_args(CallProtocol), "protocol", ", ".join(get_args(CallProtocol))),
            (bool(own), "extra_body", f"other fields than {', '.join(sorted(_OWN))}, which have parameters"),
            (not _is_json(self.extra_body), "extra_body", "a JSON object without NaN"),
            (
                self.extra_body.get(OTHER_NAME, self.max_tokens) != self.max_tokens,
                "extra_body",
                f"{OTHER_NAME} as {self.max_tokens}, which max_tokens says",
            ),
            (not self.model.strip(), "model", "the name of a model"),
            (not self.checkpoint.strip(), "checkpoint", "an identifier of the weights"),
            (not 0 <= self.temperature <= 2, "temperature", "0 to 2"),
            (self.max_tokens < 1, "max_tokens", "at least 1"),
            (not self.timeout > 0, "timeout", "seconds above 0"),
            (min(self.price_in, self.price_out) < 0, "price", "0 or more"),
        )
        for wrong, name, allowed in problems:
            if wrong:
                raise ParameterError(
                    f"{name} is {getattr(self, name, 'negative')!r}", where=name, allowed=allowed, todo="correct it"
                )

    @property
    def urls(self) -> tuple[str, ...]:
        """Base URLs, one or several."""
        return tuple(self.url.split())

    @property
    def identity(self) -> ModelIdentity:
        """What a result depends on: nothing of where and how fast the model runs."""
        return ModelIdentity(
            model=self.model,
            checkpoint=self.checkpoint,
            temperature=float(self.temperature),
            max_tokens=self.max_tokens,
            send_seed=self.send_seed,
            simulated=self.url == SIMULATED or self.model.startswith(SIMULATED),
            tool_choice=self.tool_choice,
            protocol=self.protocol,
            extra_body=dict(self.extra_body),
        )

    @property
    def priced(self) -> bool:
        """Whether its prices are known."""
        return bool(self.price_in or self.price_out)

    def price(self, usage: Usage | None) -> float | None:
        """Return what these tokens cost; None without counts or prices."""
        if usage is None or not self.priced:
            return None
        return (usage.prompt_tokens * self.price_in + usage.completion_tokens * self.price_out) / 1e6


def _are_urls(urls: Sequence[str]) -> bool:
    return 0 < len(set(urls)) == len(urls) and all(url.startswith(("http://", "https://")) for url in urls)


def _is_json(fields: Mapping[str, Any]) -> bool:
    try:
        canonical(dict(fields))
    except (TypeError, ValueError):
        return False
    return True
