/** The tenant's requests: search, and follow one. */

import { PageHeader } from "../../components/PageHeader";
import { RequestList } from "../../requests/RequestList";

export default function Page() {
  return (
    <>
      <PageHeader
        title="Requests"
        description="Finished requests with their timing, charge and signed receipt."
      />
      <RequestList side="tenant" addressOf={(id) => `/requests/${id}`} />
    </>
  );
}
