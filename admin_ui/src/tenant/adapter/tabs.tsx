/** The parts of an adapter's page, each at an address of its own (routes.tsx has them all). */

import { type ComponentType, type LazyExoticComponent, lazy } from "react";
import type { Adapter } from "../adapters/model";

export interface TabProps {
  adapter: Adapter;
}

export interface AdapterTab {
  /** In the address behind the adapter's name; "" is the first. */
  path: string;
  label: string;
  title: (name: string) => string;
  tab: LazyExoticComponent<ComponentType<TabProps>>;
}

export const TABS: readonly AdapterTab[] = [
  { path: "", label: "Overview", title: (name) => name, tab: lazy(() => import("./Overview")) },
  {
    path: "report",
    label: "Report",
    title: (name) => `Report of ${name}`,
    tab: lazy(() => import("./Report")),
  },
  {
    path: "rollout",
    label: "Rollout",
    title: (name) => `Rollout of ${name}`,
    tab: lazy(() => import("./rollout/Rollout")),
  },
];
