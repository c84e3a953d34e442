/** One of the tenant's requests. */

import { useParams } from "react-router";
import { useSession } from "../../api/context";
import { KeptContents } from "../../requests/KeptContents";
import { RequestFrame } from "../../requests/RequestFrame";

export default function RequestPage() {
  const { request = "" } = useParams();
  const may = useSession().session?.place?.may ?? [];
  return (
    <RequestFrame
      side="tenant"
      request={request}
      back="/requests"
      adapterAddress={(name) =>
        may.includes("adapters") ? `/adapters/${encodeURIComponent(name)}` : null
      }
    >
      {(id) => may.includes("keys") && <KeptContents request={id} />}
    </RequestFrame>
  );
}
