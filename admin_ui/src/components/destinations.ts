/** The pages that a key opens, in the order of the navigation. */

import {
  IconChartBar,
  IconCpu,
  IconKey,
  IconMessages,
  IconStack2,
  IconUsers,
  IconUsersGroup,
  type TablerIcon,
} from "@tabler/icons-react";
import type { Place, Role } from "../api/session";

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
    { to: "/people", label: "People", Icon: IconUsersGroup, opens: ["people"] },
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

export function destinationsOf(place: Place | null): Destination[] {
  if (place === null) return [];
  return DESTINATIONS[place.role].filter(({ opens }) =>
    opens.some((needed) => place.may.includes(needed)),
  );
}
