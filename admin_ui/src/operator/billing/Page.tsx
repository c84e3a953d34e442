/** Money of all tenants: costs with forecast and budgets, invoices and their runs, credit, and what waits. */

import { Stack, Tabs } from "@mantine/core";
import { useSearchParams } from "react-router";
import { useIsRole } from "../../api/roles";
import { PageHeader } from "../../components/PageHeader";
import { CostsTab } from "./CostsTab";
import { CreditsTab } from "./CreditsTab";
import { InvoiceList } from "./InvoiceList";
import { RunPanel } from "./RunPanel";
import { WaitingTab } from "./WaitingTab";

const TABS = {
  costs: "Costs",
  invoices: "Invoices",
  credit: "Credit",
  waiting: "Unbilled",
} as const;

export default function Page() {
  const [params, setParams] = useSearchParams();
  const chosen = params.get("tab");
  const tab = chosen !== null && Object.hasOwn(TABS, chosen) ? chosen : "costs";
  const mayRun = useIsRole("billing");
  return (
    <>
      <PageHeader
        title="Billing"
        description="Costs, invoices and credit of all tenants. Amounts in different currencies are shown separately and never added."
      />
      <Tabs
        value={tab}
        // What one tab is searched and sorted by means nothing to the others.
        onChange={(next) => setParams(next === null || next === "costs" ? {} : { tab: next })}
        keepMounted={false}
      >
        <Tabs.List mb="md" aria-label="Billing sections">
          {Object.entries(TABS).map(([name, label]) => (
            <Tabs.Tab key={name} value={name}>
              {label}
            </Tabs.Tab>
          ))}
        </Tabs.List>
        <Tabs.Panel value="costs">
          <CostsTab />
        </Tabs.Panel>
        <Tabs.Panel value="invoices">
          <Stack>
            {mayRun && <RunPanel />}
            <InvoiceList />
          </Stack>
        </Tabs.Panel>
        <Tabs.Panel value="credit">
          <CreditsTab />
        </Tabs.Panel>
        <Tabs.Panel value="waiting">
          <WaitingTab />
        </Tabs.Panel>
      </Tabs>
    </>
  );
}
