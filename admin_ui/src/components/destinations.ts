/** The pages that a key opens, in the order of the navigation. */

import {
  IconChartBar,
  IconCpu,
  IconKey,
  IconMessages,
  IconStack2,
  IconUsers,
  type TablerIcon,
} from "@tabler/icons-react";
import type { Role, Session } from "../api/session";

export interface Destination {
  to: string;
  label: string;
  Icon: TablerIcon;
  /** Any of these scopes or roles will do. */
  opens: string[];
}

const DESTINATIONS: Record<Role, Destination[]> = {
  tenant: [
    { to: "/adapters", label: "Adapters", Icon: IconStack2, opens: ["adapters"] },
    { to: "/playground", label: "Playground", Icon: IconMessages, opens: ["inference"] },
    { to: "/usage", label: "Usage and cost", Icon: IconChartBar, opens: ["usage"] },
    { to: "/keys", label: "Keys", Icon: IconKey, opens: ["keys"] },
  ],
  admin: [
    {
      to: "/operator/tenants",
      label: "Tenants",
      Icon: IconUsers,
      opens: ["owner", "operator", "billing", "read_only"],
    },
    {
      to: "/operator/engine",
      label: "Engine",
      Icon: IconCpu,
      opens: ["owner", "operator", "read_only"],
    },
  ],
};

/** A session from before keys said what they may do opens every page of its side. */
export function destinationsOf({ role, may }: Pick<Session, "role" | "may">): Destination[] {
  return DESTINATIONS[role].filter(
    ({ opens }) => may === null || opens.some((needed) => may.includes(needed)),
  );
}
