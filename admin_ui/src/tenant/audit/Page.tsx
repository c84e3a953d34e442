/** The tenant's own part of the audit log. */

import { AuditList } from "../../audit/AuditList";
import { PageHeader } from "../../components/PageHeader";

export default function Page() {
  return (
    <>
      <PageHeader
        title="Audit log"
        description="What was done to this account's keys, adapters, people and settings, by whom and from where; the operator's part in it too. Entries are never changed."
      />
      <AuditList side="own" />
    </>
  );
}
