/** The page of one request, whoever looks at it: its head, its states, its parts. */

import { type ReactNode, useMemo } from "react";
import { Copyable } from "../components/Copyable";
import { PageHeader } from "../components/PageHeader";
import { ErrorState, TableSkeleton } from "../components/states";
import { kindOf, type Receipt } from "./model";
import { QueueCauses } from "./QueueCauses";
import { type Side, useKeyName, useReceipt } from "./queries";
import { RequestView } from "./RequestView";
import { StatusBadge } from "./StatusBadge";

interface RequestFrameProps {
  side: Side;
  request: string;
  back: string;
  adapterAddress: (name: string) => string | null;
  /** Under the receipt, of a request with this id. */
  children?: (id: string) => ReactNode;
  /** Beside the title: whose it is. */
  whose?: (receipt: Receipt) => ReactNode;
}

export function RequestFrame(props: RequestFrameProps) {
  const { side, request, back, adapterAddress, children, whose } = props;
  const found = useReceipt(side, request);
  const text = found.data;
  const keyName = useKeyName(side, request);
  const receipt = useMemo(
    () => (text === undefined ? null : (JSON.parse(text) as Receipt)),
    [text],
  );
  const worst = receipt?.sequences.find(({ finish_reason }) => reasonIs(receipt, finish_reason));
  return (
    <>
      <PageHeader
        title="Request"
        back={{ to: back, label: "Requests" }}
        beside={
          receipt && (
            <>
              <StatusBadge
                status={receipt.status}
                reason={worst?.finish_reason ?? receipt.status}
                kind={kindOf(receipt.id)}
              />
              <Copyable label="request ID" value={receipt.id} />
              {whose?.(receipt)}
            </>
          )
        }
      />
      {found.isPending && <TableSkeleton rows={8} />}
      {found.error && !receipt && (
        <ErrorState
          error={found.error}
          title="This request could not be loaded"
          onRetry={() => found.refetch()}
        />
      )}
      {receipt && text !== undefined && (
        <RequestView
          receipt={receipt}
          text={text}
          keyName={keyName}
          adapterAddress={adapterAddress}
          causes={<QueueCauses side={side} request={receipt.id} />}
        >
          {children?.(receipt.id)}
        </RequestView>
      )}
    </>
  );
}

/** Whether a sequence ended so that its request's status follows from it. */
function reasonIs({ status }: Receipt, reason: string): boolean {
  if (status === "failed") return reason === "error";
  return status === "aborted" ? reason === "abort" : true;
}
