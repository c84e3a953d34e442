/** Calls of all tenants, or of one, that were answered with an error. */

import { PageHeader } from "../../components/PageHeader";
import { useParam } from "../../components/SidePanel";
import { RejectedList } from "../../rejections/RejectedList";
import { TenantPicker } from "../TenantPicker";

export default function Page() {
  const [tenant, setTenant] = useParam("tenant");
  return (
    <>
      <PageHeader
        title="Rejected calls"
        description="Inference API calls that returned an error, newest first, for all tenants or one."
        action={
          <TenantPicker
            label="Tenant"
            placeholder="All tenants"
            clearable
            value={tenant}
            onChange={setTenant}
          />
        }
      />
      <RejectedList side="operator" tenant={tenant ?? undefined} />
    </>
  );
}
