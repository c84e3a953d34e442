/** All pages: where each is, who may open it, and its place in the navigation. */

import {
  IconActivity,
  IconBan,
  IconChartBar,
  IconChecklist,
  IconClockCheck,
  IconCoin,
  IconCpu,
  IconFileInvoice,
  IconGauge,
  IconHistory,
  IconKey,
  IconLayoutDashboard,
  IconLayoutGrid,
  IconListDetails,
  IconListSearch,
  IconMessages,
  IconReceipt2,
  IconScale,
  IconShieldLock,
  IconStack2,
  IconTestPipe,
  IconUsers,
  IconUsersGroup,
  IconWebhook,
  type TablerIcon,
} from "@tabler/icons-react";
import { type ComponentType, type LazyExoticComponent, lazy } from "react";
import type { Place, Role } from "./api/session";

type Loader = () => Promise<{ default: ComponentType }>;

export interface PageRoute {
  path: string;
  label: string;
  page: LazyExoticComponent<ComponentType>;
  /** Fetches the page's chunk before it is asked for. */
  preload: Loader;
  /** Any of these scopes (of a tenant) or roles (of the operator) will do. */
  opens: readonly string[];
  /** In the navigation under this heading; without, the page is reached from others. */
  menu?: { group: string; Icon: TablerIcon };
  /** The entry of the navigation that it belongs to, where its address does not say so. */
  under?: string;
}

const pages = new Map<Loader, PageRoute["page"]>();

/** Of one component for one loader: between addresses of the same page nothing is mounted anew. */
function pageOf(preload: Loader): PageRoute["page"] {
  const known = pages.get(preload) ?? lazy(preload);
  pages.set(preload, known);
  return known;
}

function page(
  path: string,
  label: string,
  opens: readonly string[],
  preload: Loader,
  menu?: PageRoute["menu"],
  under?: string,
): PageRoute {
  return { path, label, opens, preload, page: pageOf(preload), menu, under };
}

const adapterPage: Loader = () => import("./tenant/adapter/Page");

const READERS = ["owner", "operator", "read_only"] as const;
const ANY_SCOPE = ["inference", "adapters", "usage", "keys", "people"] as const;
const EVERY_ROLE = ["owner", "operator", "billing", "read_only"] as const;

const SERVE = "Serve";
const SPEND = "Spend";
const SETTLE = "Settings";
const RUN = "Run";
const MONEY = "Money";

export const ROUTES: Record<Role, readonly PageRoute[]> = {
  tenant: [
    page("/overview", "Overview", ["usage"], () => import("./tenant/overview/Page"), {
      group: SERVE,
      Icon: IconLayoutDashboard,
    }),
    page("/adapters", "Adapters", ["adapters"], () => import("./tenant/adapters/Page"), {
      group: SERVE,
      Icon: IconStack2,
    }),
    page("/adapters/:name", "Adapter", ["adapters"], adapterPage),
    page("/adapters/:name/report", "Report", ["adapters"], adapterPage),
    page("/adapters/:name/rollout", "Rollout", ["adapters"], adapterPage),
    page("/evaluations", "Evaluations", ["adapters"], () => import("./tenant/evaluations/Page"), {
      group: SERVE,
      Icon: IconTestPipe,
    }),
    page(
      "/evaluations/:evaluation",
      "Evaluation",
      ["adapters"],
      () => import("./tenant/evaluation/Page"),
    ),
    page("/playground", "Playground", ["inference"], () => import("./tenant/playground/Page"), {
      group: SERVE,
      Icon: IconMessages,
    }),
    page("/requests", "Requests", ["usage"], () => import("./tenant/requests/Page"), {
      group: SERVE,
      Icon: IconListSearch,
    }),
    page("/requests/:request", "Request", ["usage"], () => import("./tenant/requests/RequestPage")),
    page("/rejected", "Rejected calls", ["usage"], () => import("./tenant/rejected/Page"), {
      group: SERVE,
      Icon: IconBan,
    }),
    page("/usage", "Usage and cost", ["usage"], () => import("./tenant/usage/Page"), {
      group: SPEND,
      Icon: IconChartBar,
    }),
    page("/invoices", "Invoices", ["usage"], () => import("./tenant/invoices/Page"), {
      group: SPEND,
      Icon: IconFileInvoice,
    }),
    page("/invoices/:invoice", "Invoice", ["usage"], () => import("./tenant/invoices/InvoicePage")),
    page("/budget", "Budget", ["usage"], () => import("./tenant/budget/Page"), {
      group: SPEND,
      Icon: IconCoin,
    }),
    page("/credit", "Credit and ledger", ["usage"], () => import("./tenant/credit/Page"), {
      group: SPEND,
      Icon: IconChecklist,
    }),
    page("/prices", "Prices", ["usage"], () => import("./tenant/prices/Page"), {
      group: SPEND,
      Icon: IconReceipt2,
    }),
    page("/keys", "Keys", ["keys"], () => import("./tenant/keys/Page"), {
      group: SETTLE,
      Icon: IconKey,
    }),
    page("/limits", "Limits", ANY_SCOPE, () => import("./tenant/limits/Page"), {
      group: SETTLE,
      Icon: IconGauge,
    }),
    page("/people", "People", ["people"], () => import("./tenant/people/Page"), {
      group: SETTLE,
      Icon: IconUsersGroup,
    }),
    page("/settings", "Settings", ANY_SCOPE, () => import("./tenant/settings/Page"), {
      group: SETTLE,
      Icon: IconListDetails,
    }),
    page("/webhooks", "Webhooks", ["keys"], () => import("./tenant/webhooks/Page"), {
      group: SETTLE,
      Icon: IconWebhook,
    }),
    page(
      "/webhooks/:endpoint",
      "Endpoint",
      ["keys"],
      () => import("./tenant/webhooks/EndpointPage"),
    ),
    page("/audit", "Audit log", ["keys"], () => import("./tenant/audit/Page"), {
      group: SETTLE,
      Icon: IconHistory,
    }),
    page("/account", "My sessions", ANY_SCOPE, () => import("./account/Page")),
  ],
  admin: [
    page("/operator", "Now", READERS, () => import("./operator/now/Page"), {
      group: RUN,
      Icon: IconActivity,
    }),
    page("/operator/service", "Service", READERS, () => import("./operator/service/Page"), {
      group: RUN,
      Icon: IconClockCheck,
    }),
    page("/operator/memory", "Memory", READERS, () => import("./operator/memory/Page"), {
      group: RUN,
      Icon: IconLayoutGrid,
    }),
    page("/operator/engine", "Engine", READERS, () => import("./operator/engine/Page"), {
      group: RUN,
      Icon: IconCpu,
    }),
    page("/operator/fairness", "Fairness", READERS, () => import("./operator/fairness/Page"), {
      group: RUN,
      Icon: IconScale,
    }),
    page("/operator/requests", "Requests", EVERY_ROLE, () => import("./operator/requests/Page"), {
      group: RUN,
      Icon: IconListSearch,
    }),
    page(
      "/operator/requests/:request",
      "Request",
      EVERY_ROLE,
      () => import("./operator/requests/RequestPage"),
    ),
    page(
      "/operator/rejected",
      "Rejected calls",
      EVERY_ROLE,
      () => import("./operator/rejected/Page"),
      { group: RUN, Icon: IconBan },
    ),
    page("/operator/tenants", "Tenants", EVERY_ROLE, () => import("./operator/tenants/Page"), {
      group: MONEY,
      Icon: IconUsers,
    }),
    page("/operator/tenants/:tenant", "Tenant", EVERY_ROLE, () => import("./operator/tenant/Page")),
    page("/operator/plans", "Plans", EVERY_ROLE, () => import("./operator/plans/Page"), {
      group: MONEY,
      Icon: IconListDetails,
    }),
    page("/operator/prices", "Prices", EVERY_ROLE, () => import("./operator/prices/Page"), {
      group: MONEY,
      Icon: IconReceipt2,
    }),
    page(
      "/operator/prices/new",
      "Create price list",
      ["owner", "billing"],
      () => import("./operator/newprice/Page"),
    ),
    page("/operator/billing", "Billing", EVERY_ROLE, () => import("./operator/billing/Page"), {
      group: MONEY,
      Icon: IconCoin,
    }),
    page(
      "/operator/invoices/:invoice",
      "Invoice",
      EVERY_ROLE,
      () => import("./operator/invoice/Page"),
      undefined,
      "/operator/billing",
    ),
    page(
      "/operator/reconciliation",
      "Reconciliation",
      EVERY_ROLE,
      () => import("./operator/reconciliation/Page"),
      { group: MONEY, Icon: IconChecklist },
    ),
    page("/operator/access", "Access", READERS, () => import("./operator/access/Page"), {
      group: SETTLE,
      Icon: IconShieldLock,
    }),
    page("/operator/webhooks", "Webhooks", READERS, () => import("./operator/webhooks/Page"), {
      group: SETTLE,
      Icon: IconWebhook,
    }),
    page(
      "/operator/webhooks/:operator_endpoint",
      "Endpoint",
      READERS,
      () => import("./operator/webhooks/EndpointPage"),
    ),
    page("/operator/audit", "Audit log", READERS, () => import("./operator/audit/Page"), {
      group: SETTLE,
      Icon: IconHistory,
    }),
    page("/account", "My sessions", EVERY_ROLE, () => import("./account/Page")),
  ],
};

/** The pages that somebody at this place may open, in the order of the navigation. */
export function routesOf(place: Place | null): PageRoute[] {
  if (place === null) return [];
  return ROUTES[place.role].filter(({ opens }) =>
    opens.some((needed) => place.may.includes(needed)),
  );
}
