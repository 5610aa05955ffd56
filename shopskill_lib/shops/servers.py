"""Which ShopSimulator answers at a URL, found out by asking, and kept in the run folder for when it is gone."""

from pathlib import Path

from pydantic import TypeAdapter

from shopskill_lib.clock import SYSTEM_CLOCK, Clock
from shopskill_lib.errors import SetupError
from shopskill_lib.files import read_record, write_json
from shopskill_lib.records import Record
from shopskill_lib.shops.budget import BUDGET_VERSION
from shopskill_lib.shops.catalog import Catalogue
from shopskill_lib.shops.door import Answer, Door, Json, RefusalError, UnreachableError
from shopskill_lib.shops.foreign import Generation
from shopskill_lib.shops.reward import REWARD_VERSION

CLIENT_VERSION = "shopskill-shopsimulator-v1"
"""Version of how other servers' pages and actions are translated."""

FILE = "shop.json"
"""What was found at the server, in the run folder."""

ACTION_LIMITS: dict[Generation, int] = {"v8": 30, "fork": 35, "original": 40}
"""Actions of an episode, after which the server ends it."""

_FORK = "shopsimulator-environment-v2.1"
_SOURCES: dict[Generation, str] = {"v8": "server", "fork": "recomputed", "original": "product of parts"}
_NONDETERMINISM = (
    "the original ShopSimulator draws price and budget at random for each of its slots, so that the same "
    "purchase can earn another reward on another slot"
)
_NO_SLOT = "Unable to get available environment resource"


class _SilentError(SetupError):
    """Nothing in working order answers at a URL."""


class Server(Record):
    """What answers at a URL."""

    generation: Generation
    versions: dict[str, str]
    """As it announces them; empty for the original."""
    slots: int | None
    """Episodes at once; None where it does not say."""
    unscored: str
    """Why its rewards cannot be used; "" where they can."""
    announced: dict[str, str | int] | None
    """Fingerprint of our own shop behind the contract; None of any other."""
    lease_seconds: float | None
    """Seconds after which a lease that nobody uses ends; None where none does."""
    free: int | None = None
    """Slots that were free when it was asked; None where it does not say, and never kept."""

    @property
    def source(self) -> str:
        """Where rewards come from."""
        return "none" if self.unscored else _SOURCES[self.generation]

    @property
    def note(self) -> str:
        """What every result must say beside it; "" for nothing."""
        return _NONDETERMINISM if self.generation == "original" else ""

    @property
    def described(self) -> str:
        """Generation and versions on one line."""
        told = {**self.versions, **(self.announced or {})}
        return " ".join([self.generation, *(f"{name}={told[name]}" for name in sorted(told))])

    def fingerprint(self, catalogue: Catalogue) -> dict[str, str | int]:
        """Return everything that a result depends on: our own shop's word for it, else all that is known."""
        if self.announced is not None:
            return dict(self.announced)
        ours = {"reward.version": REWARD_VERSION, "budget.version": BUDGET_VERSION} if self.generation == "fork" else {}
        return {
            "shop": f"shopsimulator {self.generation}",
            "client.version": CLIENT_VERSION,
            "catalogue": catalogue.products_fingerprint,
            "tasks": catalogue.tasks_fingerprint,
            "language": catalogue.language,
            "reward.source": self.source,
            **self.versions,
            **ours,
            "action_limit": ACTION_LIMITS[self.generation],
        }


def probe(url: str, *, timeout: float = 60.0, clock: Clock = SYSTEM_CLOCK) -> Server:
    """Find out what answers at a URL; a server without a health route lends a slot for a moment.

    Args:
        url: of the server, with or without its route.
        timeout: seconds that an answer may take.
        clock: of deadlines.

    Raises:
        SetupError: nothing answers, or nothing that is a ShopSimulator.
    """
    door = Door(url, timeout=timeout, clock=clock, connections=1)
    try:
        return _recognise(door, None)
    finally:
        door.close()


def of_run(door: Door, folder: Path) -> Server:
    """Return the server of a run: asked, and kept in the run folder; what is kept when it cannot be reached.

    Raises:
        SetupError: there is none, or another one than the run began with.
        InputError: what is kept is damaged.
    """
    path = folder / FILE
    kept = _kept(path)
    try:
        server = _recognise(door, kept)
    except _SilentError:
        if kept is None:
            raise
        return kept
    if kept is None:
        write_json(path, server.model_dump(mode="json", exclude={"free"}))
    elif server.described != kept.described or server.unscored != kept.unscored:
        raise other_server(door, server.described, kept)
    return server


def other_server(door: Door, found: str, kept: Server) -> SetupError:
    """Return the refusal of a server that is not the one a run began with."""
    return SetupError(
        f"another server answers than the run began with: {found}",
        where=f"shop_url {door.base}",
        allowed=kept.described,
        todo="start the server that the run began with, or begin a new run folder",
    )


def refuse_other_goods(server: Server, catalogue: Catalogue, door: Door) -> None:
    """Refuse a server that says it sells something else than the local copy.

    Raises:
        SetupError: products or tasks differ.
    """
    ours = {"catalogue": catalogue.products_fingerprint, "tasks": catalogue.tasks_fingerprint}
    told = server.announced or {}
    wrong = [name for name, value in ours.items() if told.get(name, value) != value]
    if wrong:
        raise SetupError(
            f"the server announces another {wrong[0]} fingerprint ({str(told[wrong[0]])[:12]}…) than the local copy",
            where=f"shop_url {door.base}",
            allowed=f"{ours[wrong[0]][:12]}…",
            todo="give catalogue, catalogue_seed, n_products and language as the server was started with",
        )


def is_full(error: Exception) -> bool:
    """Tell whether a server says that it has no free slot."""
    return isinstance(error, RefusalError) and error.own and (error.status == 503 or _NO_SLOT in error.text)


def _recognise(door: Door, kept: Server | None) -> Server:
    """Ask a server what it is; where only a slot could tell, what is kept of it will do."""
    try:
        document = door.health()
    except UnreachableError as error:
        raise _silent(door, f"no server answers ({error})") from error
    except RefusalError as error:
        if error.status >= 500:
            raise _silent(door, f"the server is out of order ({error})") from error
        document = {}
    if isinstance(document.get("environment_version"), str):
        return _of_health(document)
    return kept if kept is not None and kept.generation != "v8" else _by_reset(door)


def _silent(door: Door, found: str) -> _SilentError:
    return _SilentError(
        found,
        where=f"shop_url {door.base}",
        allowed="a running ShopSimulator server",
        todo="start it, or correct shop_url",
    )


def _of_health(document: Json) -> Server:
    """Read the health document of v8 (reference 1.3.1), or of our own shop behind its contract."""
    primary, announced = document.get("primary_reward"), document.get("fingerprint")
    slots, free = _number(document, "environment_slots"), _number(document, "free_slots")
    names = {"environment.version": "environment_version", "observation.version": "observation_version"}
    return Server(
        generation="v8",
        versions={name: str(document.get(field)) for name, field in names.items()},
        slots=None if slots is None else int(slots),
        free=None if free is None else int(free),
        unscored="" if primary == "r_strict" else f"its primary reward is {primary!r}, and M4 knows r_strict alone",
        announced=announced if isinstance(announced, dict) else None,
        lease_seconds=_number(document, "lease_seconds"),
    )


def _number(document: Json, name: str) -> float | None:
    value = document.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _by_reset(door: Door) -> Server:
    """Tell fork v2.1 from the original by what a reset says, and give its slot back."""

    def give_back(answer: Answer) -> None:
        if isinstance(answer, dict) and isinstance(answer.get("env_idx"), int):
            door.tell({"action": "release_one", "env_idx": answer["env_idx"]})

    try:
        answer = door.ask_waiting({"action": "reset", "idx": 0}, give_back)
        give_back(answer)
    except (UnreachableError, RefusalError) as error:
        full = is_full(error)
        raise SetupError(
            "all slots of the server are taken" if full else f"it does not answer as a ShopSimulator does ({error})",
            where=f"shop_url {door.base}",
            allowed="a ShopSimulator server (v8, fork v2.1 or the original) with a free slot",
            todo="free a slot, a killed client may hold it" if full else "correct shop_url",
        ) from error
    if not isinstance(answer.get("env_idx"), int) or not isinstance(answer.get("instruction"), str):
        raise SetupError(
            f"a reset is answered with {', '.join(sorted(answer)) or 'nothing'}",
            where=f"shop_url {door.base}",
            allowed="a ShopSimulator server: v8, fork v2.1 or the original",
            todo="correct shop_url",
        )
    return _of_reset(answer)


def _of_reset(answer: Json) -> Server:
    """Read what the generations before v8 say of themselves: the fork its version, the original nothing."""
    version = answer.get("environment_version")
    fork = version is not None or "observation_state" in answer
    known = not fork or version == _FORK
    return Server(
        generation="fork" if fork else "original",
        versions={"environment.version": str(version)} if fork else {},
        slots=None,
        unscored="" if known else f"its environment is {version!r}, and only the endings of {_FORK} are known",
        announced=None,
        lease_seconds=None,
    )


def _kept(path: Path) -> Server | None:
    """Read what an earlier opening of the run folder found."""
    if not path.exists():
        return None
    return read_record(
        path,
        TypeAdapter(Server),
        found="the file is damaged",
        allowed="what an opening of the shop wrote",
        todo="remove it: the server is asked again",
    )
