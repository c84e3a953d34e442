/** The tenant's first page: what it spends, how it is served, what changed. */

import { Skeleton, Stack } from "@mantine/core";
import { useNavigate } from "react-router";
import { useSession } from "../../api/context";
import { PageHeader } from "../../components/PageHeader";
import { RangePicker, useRange } from "../../components/range";
import { ErrorState } from "../../components/states";
import { useStale } from "../../live/stale";
import { Lately } from "./Lately";
import { useForecast } from "./queries";
import { Served } from "./Served";
import { Spend } from "./Spend";

export default function Page() {
  const navigate = useNavigate();
  const may = useSession().session?.place?.may ?? [];
  const range = useRange("24h");
  const forecast = useForecast();
  const stale = useStale(forecast.dataUpdatedAt);
  return (
    <>
      <PageHeader title="Overview" action={<RangePicker range={range} />} />
      <Stack gap="md">
        {forecast.isPending && (
          <Skeleton height={220} radius="md" role="status" aria-label="Loading" />
        )}
        {forecast.error && !forecast.data && (
          <ErrorState error={forecast.error} onRetry={() => forecast.refetch()} />
        )}
        {forecast.data && <Spend forecast={forecast.data} stale={stale} />}
        <Served range={range} onOpen={(to) => void navigate(to)} />
        <Lately mayAudit={may.includes("keys")} />
      </Stack>
    </>
  );
}
