/** The tenant's calls that were answered with an error. */

import { PageHeader } from "../../components/PageHeader";
import { RejectedList } from "../../rejections/RejectedList";

export default function Page() {
  return (
    <>
      <PageHeader
        title="Rejected calls"
        description="Inference API calls that returned an error, newest first."
      />
      <RejectedList side="tenant" />
    </>
  );
}
