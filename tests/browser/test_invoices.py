"""A tenant's invoice in the portal, down to one request: last month's, which is final, over usage
that was booked then. The engine is a fake; books, invoices and pages are not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from api_harness import Api, TestTenant, running_api
from portal_under_test import REPOSITORY
from priced_adapters import DIGEST, an_adapter
from shell import Listening
from tenora_platform.ids import new_id
from tenora_platform.invoices.period import before, midnight, month_of, name_of
from tenora_platform.settings import Settings
from tenora_platform.usage.sink import UsageSink
from usage_records import usage_record

LAST = before(month_of(datetime.now(UTC)))
DAYS, EACH = 3, 2  # requests of each adapter and key on each day


def apart(work: Coroutine[Any, Any, TestTenant]) -> TestTenant:
    """In a thread with a loop of its own: the browser's has this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


async def last_month(settings: Settings, folder: Path) -> TestTenant:
    """A tenant with an invoice."""
    async with running_api(settings, folder) as api:
        tenant = await api.new_tenant("Initrode")
        await book(api, tenant)
        body = {"tenant": tenant.id, "period": name_of(LAST), "draft": False}
        report = (await api.admin("POST", "/admin/v1/invoices/run", json=body)).json()
        assert (report["made"], report["failed"]) == (1, [])
        return tenant


async def book(api: Api, tenant: TestTenant) -> None:
    contexts = [{}, await an_adapter(api, tenant, "support", number=2)]
    records = []
    for day in range(DAYS):
        for more in contexts:
            for key in (tenant.key_id, "key_other"):
                for nth in range(EACH):
                    end_s = (midnight(LAST) + timedelta(days=day, hours=1 + nth)).timestamp()
                    context = {
                        "tenant_id": tenant.id,
                        "api_key_id": key,
                        "adapter_version_id": "",
                        "model": "fake-base",
                        "plan": "standard",
                    }
                    record = usage_record(
                        f"{new_id('chatcmpl')}:0",
                        tenant.id,
                        context=context | more,
                        output_tokens=100_000 * (day + 1) + nth,
                        arrival_s=end_s - 2,
                        first_token_s=end_s - 1,
                        finished_s=end_s,
                        adapter_digest=DIGEST if more else None,
                    )
                    records.append(record)
    await UsageSink(api.engine, api.state.db).store(records)


@pytest.fixture(scope="module")
def tenant(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> TestTenant:
    return apart(last_month(settings, tmp_path_factory.mktemp("books")))


@pytest.fixture
def page(chromium: Browser, listening: Listening, tenant: TestTenant) -> Iterator[Page]:
    """At the tenant's invoices; nothing may fail in a script."""
    if not (REPOSITORY / "admin_ui" / "dist" / "index.html").is_file():
        pytest.skip("the portal is not built; run `make portal`")
    context = chromium.new_context(base_url=listening.url)
    context.set_default_timeout(20_000)
    faults: list[str] = []
    page = context.new_page()
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto("/invoices")
    page.get_by_label("Key", exact=True).fill(tenant.key)
    page.get_by_role("button", name="Sign in").click()
    yield page
    context.close()
    assert not faults, faults


def get(listening: Listening, tenant: TestTenant, path: str, **query: Any) -> Any:
    headers = {"authorization": f"Bearer {tenant.key}"}
    answer = httpx.get(f"{listening.url}{path}", headers=headers, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def money(text: str) -> Decimal:
    return Decimal(re.sub(r"[$,\s]", "", text))


def numbers(table: Locator) -> list[tuple[int, Decimal]]:
    """(quantity, amount) of each row."""
    rows = [row.get_by_role("cell").all_inner_texts() for row in table.get_by_role("row").all()[1:]]
    return [(int(money(cells[-2])), money(cells[-1])) for cells in rows]


def test_from_an_invoice_to_a_request(page: Page, listening: Listening, tenant: TestTenant) -> None:
    (summary,) = get(listening, tenant, "/v1/invoices")["data"]
    page.get_by_role("link", name=summary["number"]).click()
    invoice = get(listening, tenant, f"/v1/invoices/{summary['id']}")
    total = page.get_by_test_id("invoice-total")
    expect(total).to_be_visible()
    assert money(total.inner_text()) == Decimal(invoice["total"])
    shown = page.get_by_role("table", name="Invoice lines").get_by_role("row").all()[1:-1]
    for line, row in zip(invoice["lines"], shown, strict=True):
        exact, amount = row.get_by_role("cell").all_inner_texts()[2:]
        assert money(exact) == Decimal(line["exact_amount"])
        assert money(amount) == Decimal(line["amount"])

    (line,) = [each for each in invoice["lines"] if each["meter"] == "output"]
    page.get_by_role("button", name=re.compile(f"Show usage behind line {line['no']}:")).click()
    panel = page.get_by_role("dialog")
    whole = (line["quantity"], Decimal(line["exact_amount"]))
    for step, rows in (("day", DAYS), ("adapter", 2), ("API key", 2)):
        table = panel.get_by_role("table", name=f"Line by {step}")
        expect(table.get_by_role("row")).to_have_count(rows + 1)
        found = numbers(table)
        assert (sum(each[0] for each in found), sum(each[1] for each in found)) == whole, step
        whole = found[0]
        table.get_by_role("button").first.click()
    table = panel.get_by_role("table", name="Line by request")
    expect(table.get_by_role("row")).to_have_count(EACH + 1)
    found = numbers(table)
    assert (sum(each[0] for each in found), sum(each[1] for each in found)) == whole
    table.get_by_role("link").first.click()
    expect(page.get_by_role("heading", name="Request", exact=True)).to_be_visible()
    output = page.get_by_role("table", name="Charges").get_by_role("row", name="Output tokens")
    assert money(output.get_by_role("cell").nth(2).inner_text()) == found[0][1]
    page.go_back()  # the panel is where it was
    expect(panel.get_by_role("table", name="Line by request")).to_be_visible()


def test_its_files_are_the_servers(page: Page, tenant: TestTenant, tmp_path: Path) -> None:
    page.get_by_role("table", name="Invoices").get_by_role("link").first.click()
    for name, begins in (("PDF", b"%PDF-"), ("CSV", b"")):
        with page.expect_download() as download:
            page.get_by_role("button", name=name).click()
        assert re.fullmatch(rf"[\w-]+\.{name.lower()}", download.value.suggested_filename)
        saved = tmp_path / name
        download.value.save_as(saved)
        assert saved.read_bytes().startswith(begins)
        assert saved.stat().st_size > 200
