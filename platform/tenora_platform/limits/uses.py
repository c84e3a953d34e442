"""What limits say: which there are for a request, how far they are used now, and the words and
headers in which a client reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from tenora_platform.auth import Caps, TenantContext

LimitName = Literal["requests", "tokens", "parallel_requests"]
Owner = Literal["plan", "key"]
LOCAL_HEADER = {"x-tenora-limits": "local"}
_NAMES: dict[LimitName, str] = {
    "requests": "requests per minute",
    "tokens": "tokens per minute",
    "parallel_requests": "parallel requests (each prompt counts n times)",
}


@dataclass(frozen=True, slots=True)
class LimitUse:
    """One limit now. `limit` None: not limited. `reset_ms`: when nothing of it is used any more."""

    limit: int | None
    used: int
    reset_ms: int

    @property
    def remaining(self) -> int | None:
        return None if self.limit is None else max(0, self.limit - self.used)


@dataclass(frozen=True, slots=True)
class ScopeUse:
    """The limits of a plan or of a key; `parallel` is how many sequences run."""

    requests: LimitUse
    tokens: LimitUse
    parallel: int
    parallel_max: int | None


@dataclass(frozen=True, slots=True)
class LimitsNow:
    """A tenant's limits at one moment: its plan's, and those of its key and of the keys that it
    comes from, of each that has any.
    `local`: without Redis, as this process alone counts."""

    scopes: tuple[ScopeUse, ...]
    local: bool = False

    @property
    def plan(self) -> ScopeUse:
        return self.scopes[0]

    @property
    def key(self) -> ScopeUse | None:
        """The tightest of the key's and of those that it comes from."""
        keys = self.scopes[1:]
        if not keys:
            return None
        places = min(keys, key=_free_places)
        return ScopeUse(
            requests=min((scope.requests for scope in keys), key=_room),
            tokens=min((scope.tokens for scope in keys), key=_room),
            parallel=places.parallel,
            parallel_max=places.parallel_max,
        )

    @property
    def parallel(self) -> int:
        """Sequences of the tenant that run."""
        return self.plan.parallel

    @property
    def requests(self) -> LimitUse:
        """The tightest of the plan's and the key's."""
        return min((scope.requests for scope in self.scopes), key=_room)

    @property
    def tokens(self) -> LimitUse:
        return min((scope.tokens for scope in self.scopes), key=_room)

    def headers(self) -> dict[str, str]:
        """The `x-ratelimit-*` headers; what is not limited has none (-1 broke clients)."""
        headers = dict(LOCAL_HEADER) if self.local else {}
        for name, use in (("requests", self.requests), ("tokens", self.tokens)):
            if use.limit is None:
                continue
            headers[f"x-ratelimit-limit-{name}"] = str(use.limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(use.remaining)
            headers[f"x-ratelimit-reset-{name}"] = duration(use.reset_ms)
        return headers


@dataclass(frozen=True, slots=True)
class Refusal:
    """Which limit has no room, and when it will."""

    owner: Owner
    caps: Caps
    limit: LimitName
    retry_ms: int

    def message(self, tenant: TenantContext) -> str:
        number = {
            "requests": self.caps.requests_per_min,
            "tokens": self.caps.tokens_per_min,
            "parallel_requests": self.caps.parallel_requests,
        }[self.limit]
        whose = f"on plan '{tenant.plan.name}'" if self.owner == "plan" else "for this API key"
        return (
            f"Rate limit reached for {_NAMES[self.limit]} ({number} {whose}). Please try again "
            f"in {duration(self.retry_ms)}."
        )


class Scope(NamedTuple):
    """Whose limits hold for a request. `key_id` None: the plan's."""

    owner: Owner
    caps: Caps
    key_id: str | None


def scopes_of(tenant: TenantContext) -> list[Scope]:
    """The plan, then the key and those that it comes from, of each that has any limits."""
    keys = [(tenant.key_id, tenant.key_caps)]
    keys += [(parent.key_id, parent.caps) for parent in tenant.parents]
    limited = [Scope("key", caps, key_id) for key_id, caps in keys if _has_any(caps)]
    return [Scope("plan", tenant.plan, None), *limited]


def capped(tenant: TenantContext) -> list[tuple[Owner, Caps]]:
    """The same, without the ids."""
    return [(scope.owner, scope.caps) for scope in scopes_of(tenant)]


def _has_any(caps: Caps) -> bool:
    return (caps.requests_per_min, caps.tokens_per_min, caps.parallel_requests) != (
        None,
        None,
        None,
    )


def tokens_at_once(tenant: TenantContext) -> int | None:
    """The most that one request may take: no minute has more. None: any number. A limit of 0
    refuses everything, and says so itself."""
    most = [caps.tokens_per_min for _, caps in capped(tenant) if caps.tokens_per_min]
    return min(most, default=None)


def duration(ms: int) -> str:
    """`12ms` below a second, then `1.5s`, then `2m3s`: the forms that clients of OpenAI parse."""
    if ms < 1000:
        return f"{ms}ms"
    minutes, rest_ms = divmod(ms, 60_000)
    seconds = f"{rest_ms / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def _free_places(scope: ScopeUse) -> tuple[bool, int]:
    most = scope.parallel_max
    return most is None, 0 if most is None else most - scope.parallel


def _room(use: LimitUse) -> tuple[bool, int]:
    return use.remaining is None, use.remaining or 0
