"""Fills a platform's database, past its chains and seals, with so much of what answers are made of
that one which is made at once holds the event loop for a second."""

from __future__ import annotations

from collections.abc import Mapping

from psycopg import Connection

ADAPTERS, KEYS = 30, 5
"""Of the tenant that asks: each pair has been used in every hour of a month."""
_METERS = {
    "uncached_prefill": 100,
    "cached_prefill": 50,
    "output": 20,
    "cold_load": 0,
    "device_residency": 0,
    "host_residency": 0,
    "stored": 0,
}
_MEASURES: Mapping[str, object] = {
    "requests": 1,
    "sequences": 1,
    "unrated": 0,
    "charged_nanos": 7,
    **_METERS,
    **{f"{meter}_amount": count / 100 for meter, count in _METERS.items()},
}
_HISTOGRAM = "array_fill(1::bigint, ARRAY[{buckets}])"
_SERVED: Mapping[str, object] = {
    "finished": 9,
    "ended": """'{"stop": 9}'""",
    "refused": """'{"full": 1}'""",
    "answers": """'{"200": 9, "404": 2, "503": 1}'""",
    "ttft_promised": 9,
    "ttft_met": 8,
    "tpot_promised": 9,
    "tpot_met": 7,
    "prompt_tokens": 900,
    "cached_tokens": 90,
    "output_tokens": 90,
    "service": 99.5,
    "preemptions": 0,
    "relegations": 0,
    **dict.fromkeys(("ttft", "tpot", "queue"), _HISTOGRAM),
    **dict.fromkeys(("ttft_s", "tpot_s", "queue_s"), 1),
}
_ROWS = """
INSERT INTO tenants (id, name, plan)
SELECT 'tenant_' || n, 'Tenant ' || n, 'standard' FROM generate_series(1, 600) n;

INSERT INTO adapters (id, tenant_id, name)
SELECT 'adapter_' || n, '{tenant}', 'adapter-' || n FROM generate_series(1, 2000) n;

INSERT INTO adapter_versions
  (id, tenant_id, adapter_id, number, state, bytes, weights_sha256, digest, rank)
SELECT 'version_' || n, '{tenant}', 'adapter_' || n, 1, 'active', 4900000, '',
       'sha256:' || md5(n::text) || md5(n::text), 16
  FROM generate_series(1, 2000) n;

INSERT INTO api_keys (id, tenant_id, scopes, name, prefix, hash)
SELECT 'key_' || n, '{tenant}', ARRAY['inference'], 'key ' || n, 'tn_' || n, 'x'
  FROM generate_series(1, 500) n;

INSERT INTO price_versions (id, tenant_id, currency, effective_from)
SELECT 'price_' || id, id, 'USD', now() - interval '90 days' FROM tenants;
INSERT INTO prices (price_version_id, meter, per_million)
SELECT v.id, m.meter, 1 FROM price_versions v,
       (SELECT DISTINCT meter FROM prices UNION SELECT unnest(ARRAY[
        'uncached_prefill', 'cached_prefill', 'output', 'cold_load'])) m
  ON CONFLICT DO NOTHING;

INSERT INTO usage_series
  (tenant_id, key, kind, model, adapter_id, adapter_version_id, api_key_id, plan, class)
SELECT '{tenant}', decode(md5(a || '-' || k), 'hex'), 'chatcmpl', 'fake-base', 'adapter_' || a,
       'version_' || a, 'key_' || k, 'standard', 'default'
  FROM generate_series(1, {adapters}) a, generate_series(1, {keys}) k;
INSERT INTO usage_series (tenant_id, key, kind, model, api_key_id, plan, class)
SELECT id, decode(md5(id || k), 'hex'), 'chatcmpl', 'fake-base', id || k, 'standard', 'default'
  FROM tenants, generate_series(1, 3) k WHERE id LIKE 'tenant\\_%' AND length(id) < 12;

INSERT INTO usage_hours (hour, tenant_id, series_id, price_version_no, {measured})
SELECT t.hour, s.tenant_id, s.id, v.no, {measures}
  FROM usage_series s JOIN price_versions v ON v.tenant_id = s.tenant_id,
       LATERAL (SELECT date_trunc('hour', now()) - n * interval '1 hour' AS hour
                  FROM generate_series(0, CASE WHEN s.adapter_id IS NULL THEN 30 ELSE 720 END) n) t;
INSERT INTO usage_days (day, tenant_id, series_id, price_version_no, {measured})
SELECT current_date - n, s.tenant_id, s.id, v.no, {measures}
  FROM usage_series s JOIN price_versions v ON v.tenant_id = s.tenant_id, generate_series(0, 30) n;

INSERT INTO usage_events
  (request, sequence, tenant_no, series_id, event_time, ingested_at, prompt_tokens, cached_tokens,
   output_tokens, cold_loads, finish_reason, queue_ms, adapter_load_ms, first_token_ms, duration_ms,
   preemptions, price_version_no, amount, seal)
SELECT md5(n::text)::uuid, 0, t.no, s.id,
       greatest(date_trunc('month', now()), now() - n * interval '100 ms'), now(), 100, 50, 20, 0,
       'stop', 1, 0, 30, 900, 0, v.no, 0.31, 0
  FROM (SELECT *, row_number() OVER (ORDER BY id) AS place FROM usage_series
         WHERE adapter_id IS NOT NULL) s
  JOIN tenants t ON t.id = s.tenant_id
  JOIN price_versions v ON v.tenant_id = t.id
  JOIN generate_series(1, 20000) n ON n % {series} + 1 = s.place;

INSERT INTO service_minutes (at, tenant_id, class, {served})
SELECT date_trunc('minute', now()) - n * interval '1 minute', id, 'default', {service}
  FROM tenants, generate_series(0, 59) n ON CONFLICT DO NOTHING;
INSERT INTO service_hours (at, tenant_id, class, {served})
SELECT date_trunc('hour', now()) - n * interval '1 hour', id, 'default', {service}
  FROM tenants, generate_series(0, 168) n ON CONFLICT DO NOTHING;
INSERT INTO engine_hours (at, samples, ready, running, running_max, waiting, waiting_max,
  oldest_wait_s_max, free_pages, live_kv_pages, cached_kv_pages, adapter_pages, adapters, loads,
  load_s, kv_evictions, adapter_evictions, steps, step_ms_max, restarts)
SELECT date_trunc('hour', now()) - n * interval '1 hour', 9, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1, '{{}}',
       '{{"disk": 1}}', 1, 1, 1, 1, 1, '{{}}'
  FROM generate_series(0, 720) n ON CONFLICT DO NOTHING;

INSERT INTO wait_minutes (minute, waiter, class, cause, other, seconds, sequences)
SELECT date_trunc('minute', now()), a.id, 'default', 'queue', b.id, random() + 0.1, 1
  FROM (SELECT id FROM tenants LIMIT 150) a, (SELECT id FROM tenants LIMIT 150) b;
INSERT INTO share_minutes (minute, served, class, service)
SELECT date_trunc('minute', now()), id, 'default', 5 FROM tenants;
INSERT INTO rejected_calls (id, tenant_id, at, calls, route, status, message)
SELECT 'call_' || n, '{tenant}', now() - n * interval '1 s', 1, '/v1/x', 404, 'no such thing'
  FROM generate_series(1, 3000) n;
INSERT INTO events (id, tenant_id, type, once, data)
SELECT 'event_' || n, '{tenant}', 'adapter.active', n, '{{}}' FROM generate_series(1, 3000) n;
ANALYZE;
"""


def fill(owner: Connection, tenant_id: str, buckets: int) -> None:
    """For a tenant that there is; `buckets`: of histograms."""
    rows = _ROWS.format(
        tenant=tenant_id,
        adapters=ADAPTERS,
        keys=KEYS,
        series=ADAPTERS * KEYS,
        measured=", ".join(_MEASURES),
        measures=", ".join(map(str, _MEASURES.values())),
        served=", ".join(_SERVED),
        service=", ".join(map(str, _SERVED.values())).replace("{buckets}", str(buckets)),
    )
    owner.execute(rows)
