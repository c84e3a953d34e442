"""PagePool: which pages of the arena are free, and what kind of thing each used page holds. It
knows page numbers only, neither what lies in a page nor who owns it: whose a page is, and since
when nobody uses it, it keeps as numbers that others give it."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence

FREE = ord(".")
LIVE_KV = ord("L")
CACHED_KV = ord("C")
ADAPTER = ord("A")
"""Page kinds, as the characters of `PoolStats.page_map`."""

_KINDS = (FREE, LIVE_KV, CACHED_KV, ADAPTER)


class IntegrityError(Exception):
    """A page was lost, counted twice or given back twice: a bug of ours, never a user's mistake."""


class PageAccount:
    """Somebody's pages: all that are `used`, and those of them that are CACHED_KV. `changed`: since
    its owner asked the pool for `take_changed`."""

    def __init__(self) -> None:
        self.used = 0
        self.cached = 0
        self.changed = False


class PagePool:
    """A free list over `total` equal pages. Invariant: free + used == total. Each used page is in
    one account.

    `allocate`, `release` and `set_kind` take O(1) a page.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))  # a stack; low pages go out first
        self._kinds = bytearray(b".") * total
        self._counts = dict.fromkeys(_KINDS, 0)
        self._counts[FREE] = total
        self._nobody = PageAccount()
        self._accounts = [self._nobody] * total
        self._changed: list[PageAccount] = []
        self._owners = array("I", bytes(4 * total))
        self._unused_since = array("I", bytes(4 * total))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def count(self, kind: int) -> int:
        return self._counts[kind]

    def kind(self, page: int) -> int:
        return self._kinds[page]

    def account(self, page: int) -> PageAccount:
        """In which account a used page is."""
        return self._accounts[page]

    def owner(self, page: int) -> int:
        """The number that it was allocated with."""
        return self._owners[page]

    def note_change(self, account: PageAccount) -> None:
        """Of the account or of what its owner keeps with it."""
        if not account.changed:
            account.changed = True
            self._changed.append(account)

    def take_changed(self) -> list[PageAccount]:
        """The accounts that have changed since the last call."""
        changed, self._changed = self._changed, []
        for account in changed:
            account.changed = False
        return changed

    def try_allocate(
        self, count: int, kind: int, account: PageAccount | None = None, owner: int = 0
    ) -> list[int] | None:
        """`count` pages of `kind` for an account, or None when fewer are free. Never evicts.
        `owner` is for `marks` alone."""
        if count > len(self._free):
            return None
        if count == 0:
            return []
        pages = self._free[-count:]
        del self._free[-count:]
        account = account or self._nobody
        kinds, accounts, owners = self._kinds, self._accounts, self._owners
        for page in pages:
            kinds[page] = kind
            accounts[page] = account
            owners[page] = owner
        self._count(account, kind, count)
        self._counts[FREE] -= count
        return pages

    def release(self, pages: Sequence[int]) -> None:
        """Give back pages of one account and kind. Raises IntegrityError for one that is free
        already."""
        if not pages:
            return
        kinds, kind = self._kinds, self._kinds[pages[0]]
        for page in pages:
            if kinds[page] != kind or kind == FREE:
                raise IntegrityError(f"page {page} was given back twice, or with others")
            kinds[page] = FREE
        self._count(self._accounts[pages[0]], kind, -len(pages))
        self._counts[FREE] += len(pages)
        self._free.extend(pages)

    def set_kind(self, pages: Sequence[int], kind: int, now_s: float) -> None:
        """Used pages of one account and kind change hands: live KV becomes cached KV, or the other
        way round."""
        account, before = self._accounts[pages[0]], self._kinds[pages[0]]
        kinds, since, second = self._kinds, self._unused_since, int(now_s)
        for page in pages:
            kinds[page] = kind
            since[page] = second
        self._count(account, before, -len(pages))
        self._count(account, kind, len(pages))

    def marks(self) -> tuple[bytes, bytes, bytes]:
        """Of each page: its kind (1 byte), its owner and the second of its last change between live
        and cached KV (4 bytes each; of a free page, what they were). Copies of memory, no walk."""
        return bytes(self._kinds), self._owners.tobytes(), self._unused_since.tobytes()

    def page_map(self) -> str:
        """One character a page, in page order."""
        return self._kinds.decode("ascii")

    def check(self) -> None:
        """Raises IntegrityError unless the free list, the kinds and the counts agree. O(total)."""
        if len(set(self._free)) != len(self._free):
            raise IntegrityError("a page is on the free list twice")
        if any(self._kinds[page] != FREE for page in self._free):
            raise IntegrityError("a page on the free list is marked as used")
        for kind in _KINDS:
            if self._kinds.count(kind) != self._counts[kind]:
                raise IntegrityError(f"the count of {chr(kind)!r} pages is wrong")
        used: Counter[PageAccount] = Counter()
        cached: Counter[PageAccount] = Counter()
        for page, kind in enumerate(self._kinds):
            if kind != FREE:
                used[self._accounts[page]] += 1
                cached[self._accounts[page]] += kind == CACHED_KV
        if any((a.used, a.cached) != (used[a], cached[a]) for a in set(self._accounts)):
            raise IntegrityError("an account's number of pages is wrong")
        if self._counts[FREE] != len(self._free) or sum(self._counts.values()) != self.total:
            raise IntegrityError("free + used is not the total number of pages")

    def _count(self, account: PageAccount, kind: int, change: int) -> None:
        self._counts[kind] += change
        account.used += change
        if kind == CACHED_KV:
            account.cached += change
        if not account.changed:
            self.note_change(account)
