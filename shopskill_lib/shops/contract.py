"""The embedded shop behind ShopSimulator v8's contract: a request becomes an answer (reference 1.3 and 1.4).

Names and types are the reference's; where its server is at fault this one differs (docs/shop.md, "Over HTTP").
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from reprlib import repr as short
from typing import Any, NamedTuple

from shopskill_lib.errors import ParameterError
from shopskill_lib.records import Ending, Task
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.pages import OBSERVATION_VERSION
from shopskill_lib.shops.protocol import StepResult
from shopskill_lib.shops.reward import REWARD_VERSION
from shopskill_lib.shops.slots import Lease, Slots
from shopskill_lib.text import task_key

ENVIRONMENT_VERSION = "shopskill-environment-v1"
API = "/api/shop_agent"
MULTI_TURN_LIMIT = 40
"""Actions of an episode in the mode `multi_turn`; in `single_turn` the shop's own limit holds."""
RETRY_AFTER = 5
"""Seconds after which a reset that found no free slot may be tried again."""

_REASONS: tuple[Ending, ...] = ("action_limit", "generation_length")
_BEGINS = re.compile(r"\s*(search|click)\s*\[", re.IGNORECASE)
_LABELLED = re.compile(r"^[^\S\n]*action[^\S\n]*:(.*)$", re.IGNORECASE | re.MULTILINE)

Json = dict[str, Any]


class Reply(NamedTuple):
    """What goes back over HTTP."""

    status: int
    body: Json
    retry_after: int | None = None
    lease: Lease | None = None
    """The slot that this answer hands over; freed again when it cannot be delivered."""


class Refusal(Exception):  # noqa: N818 - the answer to a request, no error of this program
    """A request that is not carried out: an HTTP status, a code for programs and a message for people."""

    def __init__(self, status: int, code: str, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.reply = Reply(status, {"result": {"error": message, "code": code}}, retry_after)


@dataclass(frozen=True, slots=True)
class Permissions:
    """What a server gives to whoever can reach it; nothing unless it was started so."""

    private: bool = False
    """Goals: `include_private_goal` on reset, and `goal` when an episode is over."""
    release_all: bool = False
    """Ending the episodes of everybody by `release_all`."""


@dataclass(frozen=True)
class Service:
    """One shop, its slots, and what may be asked of them; safe on many threads.

    Raises:
        ParameterError: a task id of the catalogue is no whole number, which the contract cannot name.
    """

    shop: EmbeddedShop
    slots: Slots
    wait_seconds: float = 20.0
    """Seconds that a reset waits for a slot at most."""
    allowed: Permissions = Permissions()
    tasks: Mapping[int, Task] = field(init=False)
    modes: Mapping[str, EmbeddedShop] = field(init=False)
    """Interaction mode -> the same shop with the limit of that mode."""

    def __post_init__(self) -> None:
        longer = copy(self.shop)
        longer.action_limit = MULTI_TURN_LIMIT
        object.__setattr__(self, "modes", {"single_turn": self.shop, "multi_turn": longer})
        object.__setattr__(self, "tasks", _by_number(self.shop.catalogue.tasks.values()))

    def answer(self, method: str, path: str, body: bytes, gone: Callable[[], bool]) -> Reply:
        """Answer one request; `gone` tells whether the client has hung up."""
        try:
            if (method, path) == ("GET", "/healthz"):
                return Reply(200, self._health())
            if (method, path) != ("POST", API):
                raise Refusal(404, "not_found", f"nothing is at {method} {path}; there are GET /healthz and POST {API}")
            return self._carry_out(_object(body), gone)
        except Refusal as refusal:
            return refusal.reply

    def _health(self) -> Json:
        return {
            "ready": True,
            "environment_slots": self.slots.count,
            "free_slots": self.slots.free,
            "tasks": len(self.tasks),
            "environment_version": ENVIRONMENT_VERSION,
            "primary_reward": "r_strict",
            "observation_version": OBSERVATION_VERSION,
            "debug_ui": "",
            "replay_ui": "",
            "fingerprint": dict(self.shop.fingerprint),
            "reward_version": REWARD_VERSION,
            "lease_seconds": self.slots.lease_seconds,
        }

    def _carry_out(self, request: Json, gone: Callable[[], bool]) -> Reply:
        """Do what `action` names."""
        action = request.get("action")
        if action == "reset":
            return self._reset(request, gone)
        if action == "release_all":
            return self._release_all()
        known = {
            "interact": self._interact,
            "terminate": self._terminate,
            "heartbeat": self._heartbeat,
            "release_one": self._release_one,
        }
        if not isinstance(action, str) or action not in known:
            names = ", ".join(["reset", "release_all", *known])
            raise Refusal(400, "unknown_action", f"action is {short(action)}; there are {names}")
        result = known[action](self._lease(request), request)
        return Reply(200, {"result": result})

    def _reset(self, request: Json, gone: Callable[[], bool]) -> Reply:
        """Start an episode; the session is made before a slot is taken, so a refused reset holds none."""
        persona, private = _flag(request, "if_persona"), _flag(request, "include_private_goal")
        task = self._task(request)
        if request.get("env_idx") is not None:
            raise Refusal(400, "env_idx_on_reset", "reset takes no env_idx: the server chooses the slot")
        mode = request.get("interaction_mode", "single_turn")
        shop = next((shop for name, shop in self.modes.items() if name == mode), None)
        if shop is None:
            raise Refusal(400, "unknown_mode", f"interaction_mode is {short(mode)}; there are {', '.join(self.modes)}")
        if private and not self.allowed.private:
            raise Refusal(403, "private_refused", "this server gives no goals; start it with --private to have them")
        if not persona:
            task = task.model_copy(update={"persona": None})
        lease = self.slots.acquire(task, shop.reset(task), self.wait_seconds, gone)
        if lease is None:
            text = f"all {self.slots.count} slots are taken, none came free within {self.wait_seconds:g} s"
            raise Refusal(503, "no_free_slot", text, RETRY_AFTER)
        result = {**_started(lease), "interaction_mode": mode, **(_private(task) if private else {})}
        return Reply(200, {"result": result}, lease=lease)

    def _task(self, request: Json) -> Task:
        idx = request.get("idx")
        if not isinstance(idx, int) or isinstance(idx, bool):
            raise Refusal(400, "bad_task", f"idx is {short(idx)}; a task id is a whole number")
        if idx not in self.tasks:
            raise Refusal(400, "unknown_task", f"there is no task {idx}")
        return self.tasks[idx]

    def _lease(self, request: Json) -> Lease:
        slot, lease_id = request.get("env_idx"), request.get("lease_id")
        if not isinstance(slot, int) or isinstance(slot, bool):
            raise Refusal(400, "bad_env_idx", f"env_idx is {short(slot)}; give the whole number that reset returned")
        if not isinstance(lease_id, str) or not lease_id:
            raise Refusal(400, "no_lease_id", f"lease_id is {short(lease_id)}; give the text that reset returned")
        lease = self.slots.find(slot, lease_id)
        if lease is None:
            text = f"slot {slot} is not held under this lease: released, or unused for {self.slots.lease_seconds:g} s"
            raise Refusal(409, "lease_not_held", text)
        return lease

    def _interact(self, lease: Lease, request: Json) -> Json:
        response = request.get("response")
        if not isinstance(response, str):
            raise Refusal(400, "no_response", f"response is {short(response)}; give an action as text")
        with lease.turn:
            _require_running(lease)
            page = lease.session.step(action_of(response))
        feedback = page.feedback
        message = "Continue interaction" if feedback is None or feedback["valid"] else feedback["message"]
        return self._after(lease, page, message) | {"action_feedback": feedback}

    def _terminate(self, lease: Lease, request: Json) -> Json:
        wanted = request.get("termination_reason", "action_limit")
        reason = next((reason for reason in _REASONS if reason == wanted), None)
        if reason is None:
            text = f"termination_reason is {short(wanted)}; there are {', '.join(_REASONS)}"
            raise Refusal(400, "unknown_reason", text)
        with lease.turn:
            _require_running(lease)
            page = lease.session.end(reason)
        return self._after(lease, page, f"Episode ended: {reason}")

    def _after(self, lease: Lease, page: StepResult, message: str) -> Json:
        """Return what interact and terminate have in common."""
        detail = page.reward_detail
        ended = {} if detail is None else {"termination_reason": detail.termination_reason}
        return {
            "done": page.done,
            "over": page.done,
            "reward": page.reward or 0.0,
            "message": message,
            "reward_detail": _detail(page),
            "purchase": self._purchase(page),
            "goal": self._goal(lease.task) if page.done and self.allowed.private else {},
            "idx": f"slot-{lease.slot}-{_number(lease.task)}",
            **_where(lease, page),
            **ended,
        }

    def _purchase(self, page: StepResult) -> Json:
        """Return what was bought; v8's `instruction_text` tells another task's request, so it stays empty."""
        bought = page.purchase
        if bought is None:
            return {}
        return {
            "asin": bought.asin,
            "category": bought.category,
            "name": bought.title,
            "product_category": "",
            "instruction_text": "",
            "attributes": self.shop.inspect(bought.asin).attributes,
            "price": bought.price.price,
            "options": bought.options,
        }

    def _goal(self, task: Task) -> Json:
        """Return the goal as far as this catalogue has it (reference 1.12)."""
        return {
            "task_id": _number(task),
            "asin": task.gold_asin,
            "category": task.category,
            "name": self.shop.inspect(task.gold_asin).title,
            "instruction_text": task.instruction,
            "instruction_simple": task.instruction_simple,
            "attributes": task.attributes,
            "price_upper": task.price_upper,
            "goal_options": [need.value for need in task.options],
            "user_persona": task.persona,
            "weight": 1,
        }

    def _heartbeat(self, lease: Lease, request: Json) -> Json:  # noqa: ARG002 - one signature for all actions
        """Keep a lease alive while nothing is asked of it; naming it was enough."""
        return {"env_idx": lease.slot, "lease_id": lease.lease_id, "lease_seconds": self.slots.lease_seconds}

    def _release_one(self, lease: Lease, request: Json) -> Json:  # noqa: ARG002 - one signature for all actions
        if not self.slots.release(lease):
            raise Refusal(409, "lease_not_held", f"slot {lease.slot} has just been released")
        return {"message": f"Environment {lease.slot} has been released"}

    def _release_all(self) -> Reply:
        if not self.allowed.release_all:
            text = "this server lets nobody end the episodes of others; start it with --release-all to allow it"
            raise Refusal(403, "release_all_refused", text)
        return Reply(200, {"result": {"message": f"{self.slots.release_all()} environments have been released"}})


def action_of(response: str) -> str:
    """Return the action in a text: all of it when it begins as one, else what its one `Action:` line says (1.3.4).

    In such a text a backslash followed by ``n`` stands for a new line, as the reference has it.
    """
    if _BEGINS.match(response):
        return response
    labelled = _LABELLED.findall(response.replace("\\n", "\n"))
    return str(labelled[0]).strip() if len(labelled) == 1 else response


def _object(body: bytes) -> Json:
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        raise Refusal(400, "invalid_json", "the body is no JSON") from None
    if not isinstance(request, dict):
        raise Refusal(400, "no_object", f"the body is a JSON {type(request).__name__}; give an object")
    return request


def _flag(request: Json, name: str) -> bool:
    value = request.get(name, False)
    if not isinstance(value, bool):
        raise Refusal(400, "bad_flag", f"{name} is {short(value)}; give true or false")
    return value


def _require_running(lease: Lease) -> None:
    if lease.session.current.done:
        text = f"the episode on slot {lease.slot} has ended; release the slot and reset"
        raise Refusal(400, "episode_ended", text)


def _by_number(tasks: Iterable[Task]) -> dict[int, Task]:
    """Return the tasks by the whole number that their id is."""
    found: dict[int, Task] = {}
    for task in tasks:
        if not task_key(task.task_id).isdecimal():
            raise ParameterError(
                f"a task is called {task.task_id!r}",
                where="catalogue",
                allowed="task ids that are whole numbers, the only ones that the contract can name",
                todo="number the tasks, or use this catalogue without a server",
            )
        found[_number(task)] = task
    return found


def _number(task: Task) -> int:
    return int(task_key(task.task_id))


def _where(lease: Lease, page: StepResult) -> Json:
    """Return the page, and the slot it belongs to."""
    return {
        "observation": page.observation_text,
        "observation_state": page.state,
        "env_idx": lease.slot,
        "lease_id": lease.lease_id,
    }


def _started(lease: Lease) -> Json:
    """Return what reset tells; what is known of the shopper only when it was asked for."""
    persona = lease.task.persona
    return {
        "task_instruction": lease.task.visible_instruction,
        "message": f"Task {_number(lease.task)} started",
        "task_mode": "standard" if persona is None else "persona",
        "environment_version": ENVIRONMENT_VERSION,
        "idx": _number(lease.task),
        **_where(lease, lease.session.current),
        **({} if persona is None else {"user_persona": persona}),
    }


def _private(task: Task) -> Json:
    """Return what `include_private_goal` adds to a reset."""
    return {
        "private_task_instruction": task.instruction,
        "goal_options": [need.value for need in task.options],
        "reason_key": None,
    }


def _detail(page: StepResult) -> Json:
    """Return reference 1.9's object: the parts that only a purchase has are absent without one."""
    detail, bought = page.reward_detail, page.purchase
    if detail is None:
        return {}
    if bought is None:
        return detail.model_dump(exclude_none=True)
    price = {**bought.price.model_dump(), "version": detail.reward_version, "evidence": {"options": bought.options}}
    return {**detail.model_dump(), "price_resolution": price}
