"""ChatTemplates: the templates that came with adapters, from their rows to the prompts of chats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import select, update

from tenora_engine.fair_cache import FairCache
from tenora_engine.text.processor import TextProcessor
from tenora_platform.apart.client import Apart
from tenora_platform.db import Database
from tenora_platform.errors import BadRequestError
from tenora_platform.inference.tokenising import LongTexts
from tenora_platform.intake.report import Problem
from tenora_platform.registry.resolver import ResolvedAdapter
from tenora_platform.registry.tables import AdapterVersionRow
from tenora_platform.templates.check import TEMPLATE_BYTES_MAX, template_problem
from tenora_platform.templates.renderer import AdapterTemplate, Renderer

PLACES = 4
"""Renderings at once in one process, one of a tenant: they are not the long texts' places, which a
slow template shall not take."""
_KEPT = 256

T = TypeVar("T")


class ChatTemplates:
    """A version never changes its template: what was read once, is kept."""

    def __init__(self, db: Database, apart: Apart) -> None:
        self._db = db
        self._renderer = Renderer(apart)
        self._turns = LongTexts(PLACES)
        self._kept: FairCache[str, str] = FairCache(_KEPT)

    async def of(
        self,
        tenant_id: str,
        adapter: ResolvedAdapter | None,
        text: TextProcessor,
        given: str | None = None,
    ) -> AdapterTemplate | None:
        """The one that came with a request, else the adapter's own; None where the base model's
        holds. Raises BadRequestError."""
        if given is not None:
            return self._given(tenant_id, given, text)
        if adapter is None or not adapter.has_chat_template:
            return None
        return await self.of_version(tenant_id, adapter.version_id, text)

    def _given(self, tenant_id: str, source: str, text: TextProcessor) -> AdapterTemplate:
        """One that came with a request, of which nothing is kept."""
        size = len(source.encode(errors="surrogatepass"))
        if not source or "\0" in source or size > TEMPLATE_BYTES_MAX:
            raise BadRequestError(
                f"chat_template must have 1 to {TEMPLATE_BYTES_MAX} bytes, none of them NUL.",
                param="chat_template",
                code="invalid_value",
            )
        return AdapterTemplate(
            self._renderer, source, text.special_tokens, tenant_id=tenant_id, param="chat_template"
        )

    async def of_version(
        self, tenant_id: str, version_id: str, text: TextProcessor
    ) -> AdapterTemplate | None:
        """The same, of a version of which only the id is known."""
        source = self._kept.use(version_id)
        if source is None:
            async with self._db.tenant_session(tenant_id) as session:
                source = await session.scalar(
                    select(AdapterVersionRow.chat_template).where(
                        AdapterVersionRow.tenant_id == tenant_id,
                        AdapterVersionRow.id == version_id,
                    )
                )
            if source is None:
                return None
            self._kept.put(version_id, source, tenant_id)
        return AdapterTemplate(self._renderer, source, text.special_tokens, version_id, tenant_id)

    async def run(self, tenant_id: str, work: Callable[[], T]) -> T:
        """What `work` makes with a template, beside the event loop."""
        return await self._turns.run(tenant_id, work)

    async def check(self, version_id: str, text: TextProcessor) -> Problem | None:
        """Before a version is served: why its template cannot be used. One that is the base
        model's own is forgotten, so that its chats are made without a detour."""
        async with self._db.admin_session() as session:
            of_version = AdapterVersionRow.id == version_id
            source = await session.scalar(select(AdapterVersionRow.chat_template).where(of_version))
            if source is not None and source == text.chat_template_source:
                await session.execute(
                    update(AdapterVersionRow).where(of_version).values(chat_template=None)
                )
                return None
        if source is None:
            return None
        template = AdapterTemplate(self._renderer, source, text.special_tokens)
        return await asyncio.to_thread(template_problem, template)
