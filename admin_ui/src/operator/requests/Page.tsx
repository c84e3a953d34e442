/** Requests of all tenants, or of one. */

import { Select } from "@mantine/core";
import { useDebouncedValue } from "@mantine/hooks";
import { useState } from "react";
import { PageHeader } from "../../components/PageHeader";
import { useParam } from "../../components/SidePanel";
import { useTenantNames } from "../../requests/queries";
import { RequestList } from "../../requests/RequestList";

export default function Page() {
  const [tenant, setTenant] = useParam("tenant");
  const [text, setText] = useState("");
  const [q] = useDebouncedValue(text, 250);
  const first = useTenantNames(true, "");
  const found = useTenantNames(true, first.data?.get(tenant ?? "") === text ? "" : q);
  const names = new Map([...(first.data ?? []), ...(found.data ?? [])]);
  const shown = found.data ?? new Map<string, string>();
  return (
    <>
      <PageHeader
        title="Requests"
        description="Finished requests, newest first, for one tenant or for all tenants in the last 7 days. Prompts and responses are never shown here."
        action={
          <Select
            label="Tenant"
            size="xs"
            w={240}
            placeholder="All tenants"
            searchable
            clearable
            nothingFoundMessage="No tenants match"
            data={[...shown].map(([value, label]) => ({ value, label }))}
            filter={({ options }) => options}
            value={tenant}
            onChange={setTenant}
            searchValue={text}
            onSearchChange={setText}
          />
        }
      />
      <RequestList
        side="operator"
        tenant={tenant ?? undefined}
        tenants={names}
        addressOf={(id) => `/operator/requests/${id}`}
      />
    </>
  );
}
