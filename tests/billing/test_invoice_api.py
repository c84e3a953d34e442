"""Invoices over HTTP and from a shell: from usage that the sink stored to a line, and from the line
down to each request; as JSON, CSV and PDF, whatever letters names have."""

from __future__ import annotations

import csv
import io
import itertools
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pypdf
import pypdfium2
import pytest

from api_harness import ADMIN_KEY, Api, TestTenant
from platform_fixtures import Connection
from priced_adapters import DIGEST, an_adapter
from shell import Listening, run
from tenora_engine.events import UsageRecord
from tenora_platform.ids import new_id
from tenora_platform.invoices.pdf import pdf_of
from tenora_platform.invoices.period import before, midnight, month_of, name_of
from tenora_platform.invoices.schemas import Invoice
from tenora_platform.tenants.tables import TenantRow
from tenora_platform.usage.sink import UsageSink
from usage_records import usage_record

LAST = before(month_of(datetime.now(UTC)))
PERIOD = name_of(LAST)
TIMES = ("arrival_s", "finished_s")
METERS = ("uncached_prefill", "cached_prefill", "output")
_minutes = itertools.count(1)


def record(tenant: TestTenant, **changes: Any) -> UsageRecord:
    """A sequence that ended last month, each a minute after the one before."""
    end = midnight(LAST) + timedelta(minutes=next(_minutes))
    context = {
        "tenant_id": tenant.id,
        "api_key_id": tenant.key_id,
        "adapter_version_id": "",
        "model": "fake-base",
        "plan": "standard",
        "request_id": changes.pop("request_id", new_id("chatcmpl")),
    }
    times = {"arrival_s": end.timestamp() - 1, "first_token_s": None}
    values = {"context": context, "finished_s": end.timestamp(), **times, **changes}
    return usage_record(f"{context['request_id']}:0", tenant.id, **values)


async def store(api: Api, *records: UsageRecord) -> None:
    await UsageSink(api.engine, api.state.db).store(list(records))


async def make(api: Api, tenant: TestTenant, draft: bool = False) -> dict[str, Any]:
    body = {"tenant": tenant.id, "period": PERIOD, "draft": draft}
    answer = await api.admin("POST", "/admin/v1/invoices/run", json=body)
    assert answer.status_code == 200, answer.text
    report = answer.json()
    assert (report["made"], report["failed"], report["has_more"]) == (1, [], False)
    found: dict[str, Any] = report["invoices"][0]
    return found


async def get(api: Api, key: str, path: str, **query: Any) -> Any:
    answer = await api.call(key, "GET", path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    made = await api.new_tenant("Łódź Σigma")
    mega = 10**6
    sent = [
        record(
            made, prompt_tokens=mega * n, cached_tokens=3 * mega // 10, output_tokens=7 * mega * n
        )
        for n in range(1, 6)
    ]
    await store(api, *sent)
    return made


@pytest.fixture(scope="module")
async def invoice(api: Api, tenant: TestTenant) -> dict[str, Any]:
    profile = {"name": "Zażółć Ωmega 株式会社", "address": "ul. Długa 1\n00-001 Łódź"}
    path = f"/admin/v1/tenants/{tenant.id}/billing_profile"
    body = {**profile, "tax_name": "VAT", "tax_rate": "23"}
    answer = await api.admin("PUT", path, json=body)
    assert answer.status_code == 200, answer.text
    made = await make(api, tenant)
    found: dict[str, Any] = await get(api, tenant.key, f"/v1/invoices/{made['id']}")
    return found


async def test_what_a_tenant_reads(api: Api, tenant: TestTenant, invoice: dict[str, Any]) -> None:
    assert (invoice["status"], invoice["period"], invoice["currency"]) == ("final", PERIOD, "USD")
    lines = {line["meter"]: line for line in invoice["lines"] if line["kind"] == "usage"}
    assert {meter: line["quantity"] for meter, line in lines.items()} == {
        "uncached_prefill": 13_500_000,
        "cached_prefill": 1_500_000,
        "output": 105_000_000,
    }
    assert lines["output"]["exact_amount"] == "42"
    assert lines["output"]["prices"] == [{"from": 0, "per_million": "0.4"}]
    assert lines["output"]["class"] == "default"
    assert invoice["buyer"]["name"] == "Zażółć Ωmega 株式会社"
    assert (invoice["subtotal"], invoice["tax"]) == ("43.38", "9.98")
    assert invoice["amount_due"] == invoice["total"] == "53.36"
    page = await get(api, tenant.key, "/v1/invoices", period=PERIOD)
    assert [each["id"] for each in page["data"]] == [invoice["id"]]
    other = await api.new_tenant("other")
    assert (await get(api, other.key, "/v1/invoices"))["data"] == []
    narrow = await api.new_tenant("narrow", scopes=["inference"])
    assert (await api.call(narrow.key, "GET", "/v1/invoices")).status_code == 403


@pytest.mark.parametrize("group", ["day", "adapter", "api_key", "request"])
async def test_a_line_leads_down_to_its_requests(
    api: Api, tenant: TestTenant, invoice: dict[str, Any], group: str
) -> None:
    for line in invoice["lines"]:
        path = f"/v1/invoices/{invoice['id']}/lines/{line['no']}"
        if line["kind"] == "tax":
            answer = await api.call(tenant.key, "GET", path)
            assert answer.json()["error"]["code"] == "line_without_usage"
            continue
        found: list[dict[str, Any]] = []
        page = None
        while True:
            query = {"group_by": group, "limit": 2, **({"page": page} if page else {})}
            part = await get(api, tenant.key, path, **query)
            found += part["data"]
            if not part["has_more"]:
                break
            page = part["next_page"]
        assert sum(each["quantity"] for each in found) == line["quantity"]
        assert sum(Decimal(each["amount"]) for each in found) == Decimal(line["exact_amount"])
        if group == "request":
            assert len(found) == 5
            assert all(each["event_id"] == f"{each['request_id']}:0" for each in found)
        if group == "api_key":
            assert [each["api_key_id"] for each in found] == [tenant.key_id]


async def test_a_part_of_a_line_leads_to_its_requests(api: Api) -> None:
    """By day, adapter and key together: what each part has adds up to the whole."""
    tenant = await api.new_tenant("parts")
    context = await an_adapter(api, tenant, "parted", number=2)
    other = {"api_key_id": "key_other"}
    for shift_days, more in itertools.product((0, 1), ({}, context, other, context | other)):
        each = record(tenant, output_tokens=1000 + next(_minutes))
        times = {name: getattr(each, name) + shift_days * 86400 for name in TIMES}
        digest = DIGEST if "adapter_id" in more else None
        whole = msgspec.structs.replace(
            each, context=each.context | more, adapter_digest=digest, **times
        )
        await store(api, whole)
    made = await make(api, tenant)
    invoice = await get(api, tenant.key, f"/v1/invoices/{made['id']}")
    (line,) = [each for each in invoice["lines"] if each["meter"] == "output"]
    path = f"/v1/invoices/{made['id']}/lines/{line['no']}"
    days = [each["day"] for each in (await get(api, tenant.key, path))["data"]]
    assert len(days) == 2
    total, requests = 0, set()
    for day, adapter, key in itertools.product(
        days, ("parted@2", ""), (tenant.key_id, "key_other")
    ):
        part = {"day": day, "adapter": adapter, "api_key": key}
        (one,) = (await get(api, tenant.key, path, group_by="request", **part))["data"]
        assert one["time"].startswith(day)
        sums = (await get(api, tenant.key, path, group_by="adapter", **part))["data"]
        assert [each["adapter"] for each in sums] == [adapter.partition("@")[0] or None]
        assert [each["quantity"] for each in sums] == [one["quantity"]]
        receipt = await get(api, tenant.key, f"/v1/requests/{one['request_id']}")
        assert receipt["api_key_id"] == key
        assert (receipt["ran"]["adapter"] is None) == (adapter == "")
        total += one["quantity"]
        requests.add(one["request_id"])
    assert (total, len(requests)) == (line["quantity"], 8)
    for part in ({"adapter": "parted"}, {"adapter": "parted@2"}, {"api_key": "key_other"}):
        assert len((await get(api, tenant.key, path, group_by="request", **part))["data"]) == 4
    for part in ({"adapter": "parted@x"}, {"adapter": "none"}, {"day": "2020-01-01"}):
        assert (await get(api, tenant.key, path, group_by="request", **part))["data"] == []
        assert (await get(api, tenant.key, path, **part))["data"] == []
    wrong = await api.call(tenant.key, "GET", f"{path}?day=soon")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "day")


async def test_late_usage_leads_to_the_late_requests(api: Api) -> None:
    tenant = await api.new_tenant("late")
    first = [record(tenant, output_tokens=10**6) for _ in range(3)]
    await store(api, *first)
    made = await make(api, tenant)
    late = [record(tenant, output_tokens=2 * 10**6) for _ in range(2)]
    await store(api, *late)
    now = datetime.now(UTC)
    body = {"tenant": tenant.id, "period": name_of(month_of(now)), "draft": True}
    report = (await api.admin("POST", "/admin/v1/invoices/run", json=body)).json()
    (draft,) = report["invoices"]
    for invoice_id, records in ((made["id"], first), (draft["id"], late)):
        whole = await get(api, ADMIN_KEY, f"/admin/v1/invoices/{invoice_id}")
        (line,) = [each for each in whole["lines"] if each["meter"] == "output"]
        path = f"/admin/v1/invoices/{invoice_id}/lines/{line['no']}"
        found = await get(api, ADMIN_KEY, path, group_by="request")
        assert {each["request_id"] for each in found["data"]} == {
            each.context["request_id"] for each in records
        }
        assert sum(each["quantity"] for each in found["data"]) == line["quantity"]
    assert line["kind"] == "adjustment"
    assert line["description"] == f"Output tokens, class default, late usage of {PERIOD}"
    assert (await api.call(tenant.key, "GET", f"/v1/invoices/{draft['id']}")).status_code == 404


async def test_a_bad_page_is_refused(api: Api, tenant: TestTenant, invoice: dict[str, Any]) -> None:
    path = f"/v1/invoices/{invoice['id']}/lines/1"
    for page in ("x", "~~", "2026-01-01~00~1", "2026-01-01T00:00:00+00:00~zz~1"):
        query = {"group_by": "request", "page": page}
        answer = await api.call(tenant.key, "GET", path, params=query)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "page")


async def test_csv_adds_up(api: Api, tenant: TestTenant, invoice: dict[str, Any]) -> None:
    answer = await api.call(tenant.key, "GET", f"/v1/invoices/{invoice['id']}.csv")
    assert answer.headers["content-type"].startswith("text/csv")
    assert f'filename="{invoice["number"]}.csv"' in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(rows) == len(invoice["lines"])
    assert sum(Decimal(row["amount"]) for row in rows) == Decimal(invoice["total"])


async def test_pdf_has_what_the_invoice_says(
    api: Api, tenant: TestTenant, invoice: dict[str, Any]
) -> None:
    path = f"/v1/invoices/{invoice['id']}.pdf"
    answer = await api.call(tenant.key, "GET", path)
    assert answer.headers["content-type"] == "application/pdf"
    pages = pypdf.PdfReader(io.BytesIO(answer.content)).pages
    text = "\n".join(page.extract_text() for page in pages)
    for part in (invoice["number"], invoice["total"], "ul. Długa 1", "00-001 Łódź", "VAT 23%"):
        assert part in text, text
    assert "Zażółć Ωmega" in text.replace("\xa0", " ")
    assert (await api.call(tenant.key, "GET", path)).content == answer.content


SCRIPTS = {
    "Latin": "Zażółć Ğšž",
    "Greek": "Ελληνική εταιρεία",
    "Cyrillic": "Общество Україна",
    "Devanagari": "उदाहरण कंपनी",
    "Arabic": "شركة المثال",
    "Thai": "บริษัท ตัวอย่าง",
    "Japanese": "株式会社テノラ",
    "Chinese": "简体有限公司 繁體",
    "Korean": "주식회사 한국",
}


def drawn(invoice: Invoice, name: str) -> tuple[bytes, str, int]:
    """Of its PDF with this buyer: the page's pixels, its text, and the size of the file."""
    named = invoice.model_copy(update={"buyer": invoice.buyer.model_copy(update={"name": name})})
    pdf = pdf_of(named)
    with pypdfium2.PdfDocument(pdf) as document:
        page = document[0]
        return (
            page.render(scale=2).to_numpy().tobytes(),
            page.get_textpage().get_text_range(),
            len(pdf),
        )


@pytest.mark.parametrize("script", SCRIPTS)
async def test_a_pdf_shows_every_script_that_is_claimed(
    invoice: dict[str, Any], script: str
) -> None:
    """Its letters can be copied, and drawn in another order they look different: they are no boxes,
    nor one letter again and again."""
    name, made = SCRIPTS[script], Invoice.model_validate({**invoice, "lines": []})
    pixels, text, size = drawn(made, name)
    if script not in (
        "Arabic",
        "Thai",
        "Devanagari",
    ):  # read back in the order in which they are drawn
        assert name in text, text
    assert "?" not in text.split("To", 1)[1].splitlines()[1]
    assert pixels != drawn(made, name[::-1])[0]
    assert pixels != drawn(made, "?" * len(name))[0]
    assert size < 120_000, "only what is used of a font is in the file"


@pytest.mark.parametrize("name", ["Иван", "हिन्दी", "😀", "a" * 200, "￿", "\u0301", "€ ﬁ", "שלום"])
async def test_no_letter_breaks_a_pdf(api: Api, name: str) -> None:
    tenant = await api.new_tenant("letters")
    await store(api, record(tenant, output_tokens=10**7))
    body = {"name": name, "address": f"{name}\n{name}"}
    answer = await api.call(tenant.key, "PUT", "/v1/billing_profile", json=body)
    assert answer.status_code == 200, answer.text
    made = await make(api, tenant)
    assert (await get(api, tenant.key, f"/v1/invoices/{made['id']}"))["buyer"]["name"] == name
    pdf = await api.call(tenant.key, "GET", f"/v1/invoices/{made['id']}.pdf")
    assert pdf.status_code == 200
    assert len(pypdf.PdfReader(io.BytesIO(pdf.content)).pages) == 1


async def test_the_platforms_own_tenants_are_left_out_unless_asked_for(api: Api) -> None:
    """Of requests, spend, previews of prices and invoices."""
    customer, own = await api.new_tenant("customer"), await api.new_tenant("checks")
    async with api.state.db.admin_session() as session:
        row = await session.get_one(TenantRow, own.id)
        row.internal = True
        await session.commit()
    for each in (customer, own):
        await store(api, record(each, output_tokens=10**6))
    day = f"{LAST:%Y-%m-%dT00:00:00Z}"

    async def tenants_in(path: str) -> set[str]:
        answer = await api.admin("GET", path)
        assert answer.status_code == 200, answer.text
        ours = (customer.id, own.id)
        return {tenant for tenant in ours if tenant in answer.text}

    for path in (
        f"/admin/v1/requests?start={day}&limit=100",
        f"/admin/v1/usage?start={day}&group_by=tenant",
        f"/admin/v1/costs?start={day}&group_by=tenant",
    ):
        assert await tenants_in(path) == {customer.id}, path
        assert await tenants_in(f"{path}&internal=true") == {customer.id, own.id}, path
        assert await tenants_in(f"{path}&tenant={own.id}") == {own.id}, path
    prices = {"model": "fake-base", "currency": "USD", "per_million": dict.fromkeys(METERS, "1")}
    answer = await api.admin("POST", "/admin/v1/prices/preview", json=prices | {"month": PERIOD})
    assert answer.status_code == 200, answer.text
    assert own.id not in answer.text
    assert customer.id in answer.text
    run = await api.admin("POST", "/admin/v1/invoices/run", json={"period": PERIOD, "draft": True})
    assert own.id not in run.text
    assert (await make(api, own, draft=True))["id"]


async def test_tax_is_the_operators_to_say(api: Api) -> None:
    tenant = await api.new_tenant("buyer")
    path = f"/admin/v1/tenants/{tenant.id}/billing_profile"
    await api.admin("PUT", path, json={"name": "A", "tax_name": "VAT", "tax_rate": "19"})
    refused = await api.call(tenant.key, "PUT", "/v1/billing_profile", json={"tax_rate": "0"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tax_rate")
    mine = await api.call(tenant.key, "PUT", "/v1/billing_profile", json={"name": "B"})
    assert (mine.json()["name"], mine.json()["tax_rate"]) == ("B", "19")
    narrow = await api.new_tenant("narrow", scopes=["usage"])
    answer = await api.call(narrow.key, "PUT", "/v1/billing_profile", json={"name": "B"})
    assert answer.status_code == 403
    log = (await api.admin("GET", "/admin/v1/audit_logs", params={"tenant_id": tenant.id})).json()
    changes = [each for each in log["data"] if each["action"] == "billing_profile.put"]
    assert [each["actor"] for each in changes] == [f"api_key:{tenant.key_id}", changes[1]["actor"]]
    assert changes[1]["actor"].startswith("admin_key:")
    since = (await api.admin("GET", path)).json()["tax_since"]
    assert since == f"{datetime.now(UTC):%Y-%m-%d}"
    same = {"name": "A", "tax_name": "VAT", "tax_rate": "19", "tax_since": "2024-02-01"}
    assert (await api.admin("PUT", path, json=same)).json()["tax_since"] == "2024-02-01"
    del same["tax_since"]
    assert (await api.admin("PUT", path, json=same)).json()["tax_since"] == "2024-02-01"


async def test_settings_of_the_seller(api: Api) -> None:
    seen = await get(api, ADMIN_KEY, "/admin/v1/billing_settings")
    assert (seen["grace_days"], seen["payment_days"], seen["automatic"]) == (3, 14, False)
    body = {"name": "Tenora GmbH", "number_prefix": "T/", "payment_days": 30}
    changed = await api.admin("PATCH", "/admin/v1/billing_settings", json=body)
    assert changed.json() == seen | body | {"updated_at": changed.json()["updated_at"]}
    same = {"credit_note_prefix": "T/"}
    refused = await api.admin("PATCH", "/admin/v1/billing_settings", json=same)
    assert refused.status_code == 400
    tenant = await api.new_tenant("numbered")
    await store(api, record(tenant, output_tokens=10**8))
    made = await make(api, tenant)
    assert made["number"].startswith("T/0")
    whole = await get(api, ADMIN_KEY, f"/admin/v1/invoices/{made['id']}")
    assert whole["seller"]["name"] == "Tenora GmbH"
    back = {"number_prefix": "INV-", "name": "", "payment_days": 14}
    await api.admin("PATCH", "/admin/v1/billing_settings", json=back)


async def test_payments_notes_and_void_over_http(api: Api) -> None:
    tenant = await api.new_tenant("pays")
    await store(api, record(tenant, output_tokens=10**8))
    made = await make(api, tenant)
    base = f"/admin/v1/invoices/{made['id']}"
    assert made["total"] == "40.00"
    paid = await api.admin(
        "POST", f"{base}/payments", json={"amount": "15.50", "reference": "pi_1"}
    )
    assert paid.status_code == 201, paid.text
    body = {"lines": [{"no": 1, "amount": "4"}], "reason": "a gift"}
    refused = await api.admin("POST", f"{base}/credit_notes", json=body)
    assert refused.json()["error"]["code"] == "more_than_the_line"
    (no,) = [
        line["no"]
        for line in (await get(api, ADMIN_KEY, base))["lines"]
        if line["meter"] == "output"
    ]
    body["lines"] = [{"no": no, "amount": "4"}]
    note = await api.admin("POST", f"{base}/credit_notes", json=body)
    assert note.status_code == 201, note.text
    assert (note.json()["kind"], note.json()["total"]) == ("credit_note", "4.00")
    assert note.json()["of_invoice"] == made["id"]
    whole = await get(api, tenant.key, f"/v1/invoices/{made['id']}")
    due = (whole["amount_paid"], whole["amount_credited"], whole["amount_due"])
    assert due == ("15.50", "4.00", "20.50")
    void = await api.admin("POST", f"{base}/void", json={"reason": "x"})
    assert void.json()["error"]["code"] == "invoice_is_settled"
    notes = await get(api, tenant.key, "/v1/invoices", kind="credit_note")
    assert [each["id"] for each in notes["data"]] == [note.json()["id"]]
    pdf = await api.call(tenant.key, "GET", f"/v1/invoices/{note.json()['id']}.pdf")
    assert "Credit note" in pypdf.PdfReader(io.BytesIO(pdf.content)).pages[0].extract_text()


async def test_a_run_of_nobody_is_refused(api: Api) -> None:
    for body, param in (({"tenant": "tenant_none"}, "tenant"), ({"period": "2026-13"}, "period")):
        answer = await api.admin("POST", "/admin/v1/invoices/run", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_usage_as_cloudevents(api: Api, tenant: TestTenant) -> None:
    query = {"start": midnight(LAST).isoformat(), "tenant": tenant.id}
    path = "/admin/v1/usage/cloudevents"
    answer = await api.admin("GET", path, params=query)
    assert answer.status_code == 200, answer.text
    events = [json.loads(line) for line in answer.text.splitlines()]
    assert len(events) == 5
    for event in events:
        assert (event["specversion"], event["type"]) == ("1.0", "tenora.usage")
        assert (event["source"], event["subject"]) == ("tenora/tenora", tenant.id)
        assert event["time"].endswith("Z")
        assert event["id"] == f"{event['data']['request_id']}:0"
    assert sum(event["data"]["output"] for event in events) == 105_000_000
    assert len({event["id"] for event in events}) == 5
    assert sum(Decimal(event["data"]["amount"]) for event in events) == Decimal("43.38")
    lago = await api.admin("GET", path, params=query | {"form": "lago"})
    first = json.loads(lago.text.splitlines()[0])
    assert set(first) == {
        "transaction_id",
        "external_subscription_id",
        "code",
        "timestamp",
        "properties",
    }
    assert first["transaction_id"] == events[0]["id"]
    assert float(first["timestamp"]) == datetime.fromisoformat(events[0]["time"]).timestamp()


async def test_pages_of_an_export_have_neither_gaps_nor_doubles(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenora_platform.invoices.cloudevents._BATCH", 2)
    query = {"start": midnight(LAST).isoformat(), "tenant": tenant.id}
    answer = await api.admin("GET", "/admin/v1/usage/cloudevents", params=query)
    ids = [json.loads(line)["id"] for line in answer.text.splitlines()]
    assert len(ids) == len(set(ids)) == 5


def test_from_a_shell(listening: Listening, tmp_path: Path, owner: Connection) -> None:
    where, admin = ("--url", listening.url), {"TENORA_ADMIN_KEY": ADMIN_KEY}
    code, text = run("tenant", "create", "shell", "--json", *where, **admin)
    made = json.loads(text)
    # A customer for the whole month.
    owner.execute("update tenants set created_at = '2020-01-01' where id = %s", [made["id"]])
    terms = {
        "tenant": made["id"],
        "per_million": {"uncached_prefill": "1", "cached_prefill": "0", "output": "2"},
        "minimum": "12.5",
        "effective_from": "2020-01-01T00:00:00Z",
    }
    body = tmp_path / "price.json"
    body.write_text(json.dumps(terms))
    code, text = run("price", "add", str(body), *where, **admin)
    assert code == 0, text
    this = name_of(month_of(datetime.now(UTC)))
    only = ("--tenant", made["id"], "--period", this)
    code, text = run("invoice", "run", *only, "--draft", "--json", *where, **admin)
    assert code == 0, text
    (draft,) = json.loads(text)["invoices"]
    assert (draft["status"], draft["total"]) == ("draft", "12.50")
    code, text = run("invoice", "run", *only, "--final", *where, **admin)
    assert (code, "has not ended yet" in text) == (1, True)
    code, text = run("invoice", "show", draft["id"], *where, **admin)
    assert (code, "12.50" in text, "Difference to the plan's minimum" in text) == (0, True, True)
    code, text = run("invoice", "show", *where, TENORA_API_KEY=made["key"])
    assert (code, draft["id"] in text) == (0, False)
    for form, begin in (("pdf", b"%PDF"), ("csv", b"number,"), ("json", b"{")):
        out = tmp_path / f"invoice.{form}"
        words = ("invoice", "export", draft["id"], "--format", form, "--out", str(out))
        code, text = run(*words, *where, **admin)
        assert code == 0, text
        assert out.read_bytes().startswith(begin)
    code, text = run("invoice", "export", draft["id"], "--format", "doc", *where, **admin)
    assert (code, "json, csv or pdf" in text) == (1, True)
    code, text = run("usage", "export", "--out", str(tmp_path / "usage"), *where, **admin)
    assert code == 0, text
    code, text = run("usage", "export", "--start", "soon", *where, **admin)
    assert (code, "start" in text) == (1, True)
