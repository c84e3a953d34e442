/** The tenant's first page: what it spends, how it is served, what changed. */

import { Skeleton, Stack } from "@mantine/core";
import { useNavigate } from "react-router";
import { useSession } from "../../api/context";
import { PageHeader } from "../../components/PageHeader";
import { type Range, RangePicker, useRange } from "../../components/range";
import { ErrorState } from "../../components/states";
import { useStale } from "../../live/stale";
import { Lately } from "./Lately";
import { Quickstart } from "./Quickstart";
import { useForecast, useIsNew } from "./queries";
import { Served } from "./Served";
import { Spend } from "./Spend";

export default function Page() {
  const may = useSession().session?.place?.may ?? [];
  const range = useRange("24h");
  const forecast = useForecast();
  const isNew = useIsNew();
  return (
    <>
      <PageHeader title="Overview" action={isNew === false && <RangePicker range={range} />} />
      <Stack gap="md">
        {isNew === undefined && <Loading />}
        {isNew === true && <Quickstart may={may} />}
        {isNew === false && <Figures forecast={forecast} range={range} />}
        <Lately mayAudit={may.includes("keys")} />
      </Stack>
    </>
  );
}

function Loading() {
  return <Skeleton height={220} radius="md" role="status" aria-label="Loading" data-loading />;
}

interface FiguresProps {
  forecast: ReturnType<typeof useForecast>;
  range: Range;
}

function Figures({ forecast, range }: FiguresProps) {
  const navigate = useNavigate();
  const stale = useStale(forecast.dataUpdatedAt);
  return (
    <>
      {forecast.isPending && <Loading />}
      {forecast.error && !forecast.data && (
        <ErrorState error={forecast.error} onRetry={() => forecast.refetch()} />
      )}
      {forecast.data && <Spend forecast={forecast.data} stale={stale} />}
      <Served range={range} onOpen={(to) => void navigate(to)} />
    </>
  );
}
