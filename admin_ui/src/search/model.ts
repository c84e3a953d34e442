/** What was found, as lines that lead somewhere. Knows no component. */

import type { Schemas } from "../api/client";
import { formatDate, formatMoney } from "../components/format";

export interface Hit {
  id: string;
  label: string;
  note: string;
  to: string;
}

export function adapterHits(adapters: readonly Schemas["Adapter"][]): Hit[] {
  return adapters.map(({ id, name, state, version }) => ({
    id,
    label: name,
    note: `version ${version}, ${state}`,
    to: `/adapters/${encodeURIComponent(name)}`,
  }));
}

export function tierHits(adapters: readonly Schemas["AdapterPlace"][]): Hit[] {
  return adapters.map(({ id, name, version, tenant, tier }) => ({
    id,
    label: name === null ? id : `${name}@${version}`,
    note: `${tenant ?? "no tenant"}, ${tier}`,
    to: `/operator/memory${name === null ? "" : `?q=${encodeURIComponent(name)}`}`,
  }));
}

export function requestHits(requests: readonly Schemas["RequestItem"][], base: string): Hit[] {
  return requests.map(({ id, model, status, arrived_at }) => ({
    id,
    label: id,
    note: [model, status, arrived_at && formatDate(arrived_at)].filter(Boolean).join(", "),
    to: `${base}/${encodeURIComponent(id)}`,
  }));
}

export function keyHits(keys: readonly Schemas["ApiKey"][]): Hit[] {
  return keys.map(({ id, name, prefix, revoked_at }) => ({
    id,
    label: name,
    note: `tn_${prefix}…${revoked_at ? ", revoked" : ""}`,
    to: `/keys?key=${encodeURIComponent(id)}`,
  }));
}

export function tenantHits(tenants: readonly Schemas["TenantListed"][]): Hit[] {
  return tenants.map(({ id, name, plan, status }) => ({
    id,
    label: name,
    note: `${plan}, ${status}`,
    to: `/operator/tenants/${id}`,
  }));
}

/** Those with `asked` in number, period, tenant or id; null: all, the server has searched. */
export function invoiceHits(
  invoices: readonly Schemas["InvoiceSummary"][],
  base: string,
  asked: string | null,
): Hit[] {
  const wanted = asked?.toLowerCase() ?? "";
  return invoices
    .filter(({ number, period, id }) =>
      [number, period, id].some((text) => text?.toLowerCase().includes(wanted)),
    )
    .map(({ id, number, period, tenant_name, total, currency, status }) => ({
      id,
      label: number ?? `Draft for ${period}`,
      note: [
        base.startsWith("/operator") && tenant_name,
        period,
        formatMoney(total, currency),
        status,
      ]
        .filter(Boolean)
        .join(", "),
      to: `${base}/${id}`,
    }));
}

/** Whether a page's label has what was typed in it. */
export function fits(label: string, typed: string): boolean {
  return label.toLowerCase().includes(typed.trim().toLowerCase());
}
