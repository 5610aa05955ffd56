"""ShopSimulator servers over HTTP, as shops: v8 (and our own shop behind its contract), fork v2.1, the original.

Whatever becomes of an episode, its slot goes back once; an answer that belongs to a slot which another client has
stepped on is an error and never a reward.
"""

import contextlib
import re
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from shopskill_lib.clock import SYSTEM_CLOCK, Clock
from shopskill_lib.errors import InfrastructureError, ParameterError, SetupError
from shopskill_lib.records import Ending, Product, Task
from shopskill_lib.shops import leases, servers
from shopskill_lib.shops.catalog import Catalogue
from shopskill_lib.shops.door import Answer, Door, Json, RefusalError, UnreachableError
from shopskill_lib.shops.foreign import V8, Dialect, Fork, Original, Page
from shopskill_lib.shops.leases import Ledger, Places
from shopskill_lib.shops.outcomes import NoAnswerError, Outcome
from shopskill_lib.shops.pages import BUY
from shopskill_lib.shops.protocol import StepResult, refuse_ended
from shopskill_lib.shops.reward import score_nothing
from shopskill_lib.shops.servers import Server, probe
from shopskill_lib.text import key, task_key

__all__ = ["Server", "ShopSimulator", "connect", "probe"]

RESET_TRIES = 6
"""Requests for one reset at most, of those that surely were not carried out: more than it takes to call a server down,
so that no episode is given up for a server that answers nobody."""
LONGEST_PAUSE = 8.0
"""Seconds between two of them at most."""
PATIENCE = 300.0
"""Seconds that an episode waits for a slot while other clients hold them all, at least."""
PAUSE = 5.0
"""Seconds between two questions for a slot while this process holds none."""

LEAVING: dict[Ending, str] = {
    "action_limit": "action_limit",
    "generation_length": "generation_length",
    "context_length": "generation_length",
}
"""Reason for which an agent leaves an episode (M3) -> v8's word for it."""

_NO_TASK = "list index out of range"


def connect(
    url: str,
    catalogue: Catalogue,
    folder: Path,
    *,
    timeout: float = 60.0,
    clock: Clock = SYSTEM_CLOCK,
    threads: int = 8,
) -> "ShopSimulator":
    """Open a server as the shop of a run.

    Args:
        url: of the server, with or without its route.
        catalogue: the local copy of what it sells: tasks, and gold for audits and the firewall.
        folder: the run folder; what was found is kept there, and used when the server cannot be reached later.
        timeout: seconds that an answer may take, waiting for a slot included.
        clock: all waiting.
        threads: episodes at once that are wanted.

    Raises:
        SetupError: no ShopSimulator answers, or one that is not of the local copy or not the one the run began with.
    """
    door = Door(url, timeout=timeout, clock=clock, connections=threads)
    try:
        server = servers.of_run(door, folder)
        servers.refuse_other_goods(server, catalogue, door)
    except BaseException:
        door.close()
        raise
    return ShopSimulator(door, server, catalogue, folder, threads)


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot that was lent for an episode.

    Attributes:
        number: of the reset, in the ledger.
        idx: number of the task.
        slot: the server's number of the slot.
        lease_id: of v8; None elsewhere.
    """

    number: int
    idx: int
    slot: int
    lease_id: str | None

    def body(self, action: str, **more: str) -> Json:
        """Return a request about this slot."""
        lease = {} if self.lease_id is None else {"lease_id": self.lease_id}
        return {"action": action, "env_idx": self.slot, **lease, **more}

    def is_echoed_by(self, answer: Json) -> bool:
        """Tell whether an answer, as far as it says so, is of this slot and this task."""
        slot, session = answer.get("env_idx", self.slot), answer.get("idx", self.idx)
        return slot == self.slot and session in (self.idx, str(self.idx), f"slot-{self.slot}-{self.idx}")


class ShopSimulator:
    """A server as a shop; its sessions may run on many threads."""

    def __init__(self, door: Door, server: Server, catalogue: Catalogue, folder: Path, threads: int) -> None:
        """Take a server that `connect` has found."""
        self.door, self.server, self.catalogue = door, server, catalogue
        self.fingerprint: Mapping[str, str | int] = server.fingerprint(catalogue)
        self.unscored, self.note = server.unscored, server.note
        self.dialect = _dialect(server, catalogue)
        self._folder, self._ledger, self._places = folder, Ledger(folder, door.base), Places(door.base, threads)
        self._opening, self._opened = threading.Lock(), False
        self._lending, self._lent, self._beating = threading.Lock(), dict[int, Lease](), False
        self._closing = threading.Event()

    def reset(self, task: Task) -> "RemoteSession":
        """Start an episode on its home page; waits for a slot.

        Raises:
            InfrastructureError: the server failed, or had no slot for a long time.
            SetupError: the server has another task under this number, or none; it has been down for too long.
        """
        self.inspect(task.gold_asin)
        idx = _number(task)
        self._open()
        self._places.take()
        lease = None
        try:
            number, answer = self._lend(task, idx)
            lease = self._lease(number, idx, answer)
            self._keep(lease)
            return RemoteSession(self, task, lease, self._home(answer, task, lease))
        except BaseException:
            if lease is None:
                self._places.give_back()
            else:
                self.give_back(lease)
            raise

    def inspect(self, asin: str) -> Product:
        """Return a product of the local copy by its id. Privileged: never offered to a policy (M11).

        Raises:
            InputError: the local copy has no such product.
        """
        return self.catalogue.product(asin)

    def close(self) -> None:
        """Close the connections; sessions are to be closed before."""
        self._closing.set()
        self.door.close()

    def give_back(self, lease: Lease, *, release: bool = True, sure: bool = True) -> None:
        """Give an episode's slot back, with the one request that there is for it.

        Args:
            lease: the slot.
            release: whether the server is told; else it has freed the slot itself, or may have.
            sure: whether nothing is held then; else the next run names the slot.
        """
        with self._lending:
            self._lent.pop(lease.number, None)
        try:
            if self._released(lease, release) and sure:
                self._ledger.over(lease.number)
        finally:
            self._places.give_back()

    def _released(self, lease: Lease, release: bool) -> bool:
        """Release a slot where it is to be released; tell whether the server has heard it, whatever it says."""
        try:
            if release:
                self.door.tell(lease.body("release_one"))
        except RefusalError as error:
            return error.own
        except UnreachableError:
            return False
        return True

    def _open(self) -> None:
        """Before the first reset, name what killed processes left, and ask for no more than the server has."""
        with self._opening:
            if not self._opened:
                leases.recover(self._folder, self.door, sys.stderr)
                if self.server.slots is not None:
                    self._places.cap(self.server.slots)
                self._opened = True

    def _lend(self, task: Task, idx: int) -> tuple[int, Json]:
        """Ask for a slot until there is one; return the number of the reset and its answer."""
        alone, tries, body = 0.0, 0, self._body(task, idx)
        while True:
            number, held = self._ledger.asked(task.task_id), len(self._lent)
            try:
                return number, self.door.ask_waiting(body, partial(self._take_late, number, idx))
            except SetupError:  # the server is down for good, and nothing was sent
                self._ledger.over(number)
                raise
            except (RefusalError, UnreachableError) as error:
                if self._holds_nothing(error):
                    self._ledger.over(number)
                if self._has_no_slot(error):
                    alone = self._wait_for_slot(alone, max(held, len(self._lent)), error)
                    continue
                tries += 1
                passing = error.passing if isinstance(error, RefusalError) else not error.sent
                if not passing or tries == RESET_TRIES:
                    raise self._refused(error, idx) from error
                self.door.clock.sleep(min(LONGEST_PAUSE, 2.0 ** (tries - 1)))

    def _body(self, task: Task, idx: int) -> Json:
        """Return the request for a task; only v8 reads whether the persona counts."""
        body: Json = {"action": "reset", "idx": idx}
        if self.server.generation == "v8":
            body |= {"if_persona": task.persona is not None, "interaction_mode": "single_turn"}
        return body

    def _holds_nothing(self, error: RefusalError | UnreachableError) -> bool:
        """Tell whether a failed reset surely holds no slot: before v8, a refused one does and does not say which."""
        if isinstance(error, UnreachableError):
            return not error.sent
        return self.server.generation == "v8" or not error.own or servers.is_full(error)

    def _has_no_slot(self, error: RefusalError | UnreachableError) -> bool:
        """Tell whether a reset failed for want of a slot: the server says so, or let it wait while it has none."""
        if isinstance(error, RefusalError):
            return servers.is_full(error)
        if not error.late or self.server.generation != "v8":
            return False
        with contextlib.suppress(RefusalError, UnreachableError):
            return self.door.health().get("free_slots") == 0
        return False

    def _wait_for_slot(self, alone: float, held: int, error: Exception) -> float:
        """Wait until another episode of this process ends, or a little where there is none.

        Args:
            alone: seconds that have been waited without any.
            held: slots that this process held while it asked.
            error: what the server said.

        Returns:
            The seconds, with those of this time.
        """
        if alone > PATIENCE:
            raise self.door.infrastructure(error, f"no slot came free in {PATIENCE:g} s") from error
        self._places.wait_for_another(held)
        if held:
            return 0.0
        self.door.clock.sleep(PAUSE)
        return alone + PAUSE + (self.door.timeout if isinstance(error, UnreachableError) else 0.0)

    def _take_late(self, number: int, idx: int, answer: Answer) -> None:
        """Give back at once what comes of a reset that nobody waits for any more."""
        if isinstance(answer, RefusalError | UnreachableError):
            nothing = self._holds_nothing(answer)
        else:
            nothing = self._released(self._lease(number, idx, answer), release=True)
        if nothing:  # else the ledger keeps it for the next run to name
            self._ledger.over(number)

    def _lease(self, number: int, idx: int, answer: Json) -> Lease:
        """Return the slot of a reset's answer, written down."""
        slot, lease_id = answer.get("env_idx"), answer.get("lease_id")
        v8 = self.server.generation == "v8"
        if not isinstance(slot, int) or (v8 and not isinstance(lease_id, str)):
            raise self.door.infrastructure(NoAnswerError(f"env_idx {slot!r}, lease_id {lease_id!r}"), f"task {idx}")
        lease = Lease(number, idx, slot, lease_id if v8 else None)
        self._ledger.held(number, slot, lease.lease_id)
        return lease

    def _keep(self, lease: Lease) -> None:
        """Count a lease among those of running episodes, which are kept alive where leases end by themselves."""
        with self._lending:
            self._lent[lease.number] = lease
            if self.server.lease_seconds is not None and not self._beating:
                self._beating = True
                pause = self.server.lease_seconds / 3
                threading.Thread(target=self._beat, args=(pause,), name="shop-leases", daemon=True).start()

    def _beat(self, pause: float) -> None:
        """Name all leases every so many seconds, as a model may think for longer than a lease lasts."""
        while not self._closing.wait(pause):
            with self._lending:
                held = tuple(self._lent.values())
                self._beating = bool(held)
            if not held:
                return
            for lease in held:
                with contextlib.suppress(RefusalError, UnreachableError):
                    self.door.tell(lease.body("heartbeat"))

    def _home(self, answer: Json, task: Task, lease: Lease) -> Page:
        """Return the first page, once server and local copy mean the same task."""
        told = answer.get("environment_version")
        known = self.server.versions.get("environment.version")
        if self.server.announced is None and told != known:
            raise servers.other_server(self.door, f"environment.version={told}", self.server)
        try:
            theirs, ours = self.dialect.instruction(answer, task)
            page = self.dialect.opened(answer)
        except NoAnswerError as error:
            raise self.door.infrastructure(error, f"reset of task {lease.idx}") from error
        found = self._unlike(answer, task)
        if key(theirs) != key(ours):
            found = f"asks for {theirs[:60]!r}, in the local copy for {ours[:60]!r}"
        if found:
            raise self._other_copy(
                f"task {lease.idx} of the server {found}: it sells another catalogue, or numbers its tasks otherwise"
            )
        return page

    def _unlike(self, answer: Json, task: Task) -> str:
        """Say in what the shopper of a task differs; a fork's slot keeps the persona of an earlier task."""
        generation, told = self.server.generation, bool(answer.get("user_persona"))
        if task.persona is not None and not told and generation != "original":
            return "has no persona"
        known = self.catalogue.tasks.get(task.task_id, task).persona is not None
        return "has a persona, in the local copy none" if generation == "v8" and told and not known else ""

    def _refused(self, error: RefusalError | UnreachableError, idx: int) -> InfrastructureError | SetupError:
        """Return what a reset without a slot means: a task that is not there, or a server that fails."""
        if isinstance(error, RefusalError) and error.own:
            named = error.status == 500 and re.search(rf"(?<!\d){idx}(?!\d)", error.text)
            if named or error.status == 400 or error.text == _NO_TASK:
                return self._other_copy(f"the server refuses task {idx} ({error})")
        return self.door.infrastructure(error, f"reset of task {idx}")

    def _other_copy(self, found: str) -> SetupError:
        return SetupError(
            found,
            where=f"shop_url {self.door.base}",
            allowed="a local copy of the server's own product file",
            todo="give catalogue the file that the server was started with",
        )


class RemoteSession:
    """One episode on a server."""

    def __init__(self, shop: ShopSimulator, task: Task, lease: Lease, home: Page) -> None:
        self._shop, self._task, self._lease = shop, task, lease
        self._steps = 0
        self._closed = self._freed = self._unknown = False
        self.current = _shown(home)

    def step(self, action: str) -> StepResult:
        """Carry out ``search[query]`` or ``click[value]``; a request that fails is not sent again.

        Raises:
            InputError: the episode has ended.
            InfrastructureError: no answer, none of a ShopSimulator, or one of another client's episode.
            SetupError: the reward is not what M4 says.
        """
        refuse_ended(self, self._task)
        dialect, state = self._shop.dialect, self.current.state
        said = dialect.said(action, state)
        self._steps += 1
        answer = self._ask(self._lease.body("interact", response=said), said)
        try:
            page = dialect.page(answer, action, state, self._task)
            outcome = self._outcome(answer) if answer.get("done") or answer.get("over") else None
        except NoAnswerError as error:
            raise self._fault(error) from error
        self.current = _shown(page, outcome)
        return self.current

    def end(self, reason: Ending) -> StepResult:
        """End the episode without a purchase, with reward 0 (M3); the page stays as it is.

        Only v8 is told; elsewhere the slot is simply given back.

        Raises:
            InputError: the episode has ended.
            ParameterError: the reason is none for which an agent leaves.
            InfrastructureError, SetupError: see `step`.
        """
        refuse_ended(self, self._task)
        if reason not in LEAVING:
            raise ParameterError(
                f"the ending is {reason!r}", where="reason", allowed=", ".join(LEAVING), todo="name one of them"
            )
        page = Page(self.current.state, self.current.observation_text, None)
        outcome = Outcome(reason, None, None if self._shop.unscored else score_nothing(reason))
        if self._shop.server.generation == "v8":
            answer = self._ask(self._lease.body("terminate", termination_reason=LEAVING[reason]), "terminate")
            try:
                told = self._outcome(answer).detail
            except NoAnswerError as error:
                raise self._fault(error) from error
            outcome = Outcome(reason, None, told and told.model_copy(update={"termination_reason": reason}))
        self.current = _shown(page, outcome)
        return self.current

    def close(self) -> None:
        """Give the slot back, once; the original has freed it when it said that the episode is over."""
        if not self._closed:
            self._closed = True
            self._shop.give_back(self._lease, release=not self._freed, sure=not self._unknown)

    def _ask(self, body: Json, said: str) -> Json:
        """Ask about this slot, and refuse an answer about another."""
        original = self._shop.server.generation == "original"
        try:
            answer = self._shop.door.ask(body)
        except UnreachableError as error:
            last = key(said) == key(f"click[{BUY}]") or self._steps >= servers.ACTION_LIMITS["original"]
            self._freed = self._unknown = original and error.sent and last
            raise self._fault(error) from error
        except RefusalError as error:
            raise self._fault(error) from error
        self._freed = original and bool(answer.get("over"))
        if not self._lease.is_echoed_by(answer):
            raise self._shared(f"an answer names slot {answer.get('env_idx')!r} and session {answer.get('idx')!r}")
        return answer

    def _outcome(self, answer: Json) -> Outcome:
        """Return how the episode ended, once it is sure that it is this one's end."""
        outcome = self._shop.dialect.outcome(answer, self._task)
        goal = answer.get("goal") or {}
        gold, bought = self._task.gold_asin, None if outcome.purchase is None else outcome.purchase.asin
        opened = self.current.state.get("product", {}).get("asin", bought)
        if goal.get("asin", gold) != gold:
            raise self._shared("the goal at the end is another task's")
        if bought not in (None, opened):
            raise self._shared(f"product {bought} was bought, {opened} was the one looked at")
        return outcome

    def _fault(self, error: Exception) -> InfrastructureError:
        return self._shop.door.infrastructure(error, f"step {self._steps} of task {self._lease.idx}")

    def _shared(self, found: str) -> InfrastructureError:
        return InfrastructureError(
            f"the slot was shared: {found}",
            where=f"shop at {self._shop.door.base}, slot {self._lease.slot}, task {self._lease.idx}",
            allowed="one client a slot",
            todo="find the other client; a slot that two clients release is lent to both",
        )


def _shown(page: Page, outcome: Outcome | None = None) -> StepResult:
    """Return a page, with the end of its episode where there is one."""
    detail = None if outcome is None else outcome.detail
    return StepResult(
        observation_text=page.text,
        state=page.state,
        feedback=page.feedback,
        done=outcome is not None,
        reward=None if detail is None else detail.r_strict,
        reward_detail=detail,
        purchase=None if outcome is None else outcome.purchase,
        ending=None if outcome is None else outcome.ending,
    )


def _dialect(server: Server, catalogue: Catalogue) -> Dialect:
    """Return how a server is spoken to."""
    if server.generation == "v8":
        return V8(ours=server.announced is not None, scored=not server.unscored)
    scored = not server.unscored
    return Fork(catalogue.language, scored=scored) if server.generation == "fork" else Original(catalogue.language)


def _number(task: Task) -> int:
    """Return the number by which servers know a task."""
    number = task_key(task.task_id)
    if not number.isdecimal():
        raise SetupError(
            f"the task is called {task.task_id!r}",
            where="catalogue",
            allowed="whole numbers: a ShopSimulator server knows its tasks by nothing else",
            todo="give the server's own product file",
        )
    return int(number)
