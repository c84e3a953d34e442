/** The tenant's first page: what it spends, how it is served, what changed. */

import { Skeleton, Stack } from "@mantine/core";
import { lazy, Suspense } from "react";
import { useNavigate } from "react-router";
import { useSession } from "../../api/context";
import { PageHeader } from "../../components/PageHeader";
import { type Range, RangePicker, useRange } from "../../components/range";
import { ErrorState } from "../../components/states";
import { useStale } from "../../live/stale";
import { useAccountBudget } from "../budget/queries";
import { Lately } from "./Lately";
import { useForecast, useIsNew } from "./queries";
import { Served } from "./Served";
import { Spend } from "./Spend";

/** The one of new tenants alone, the other of the others. */
const Quickstart = lazy(() => import("./Quickstart"));
const BudgetPanel = lazy(() => import("../budget/BudgetPanel"));

export default function Page() {
  const may = useSession().session?.place?.may ?? [];
  const range = useRange("24h");
  const forecast = useForecast();
  const isNew = useIsNew();
  const budget = useAccountBudget(null, isNew === false);
  // All at once: what comes later would push the others down.
  const isPending =
    isNew === undefined || (isNew === false && (forecast.isPending || budget.isPending));
  return (
    <>
      <PageHeader title="Overview" action={isNew === false && <RangePicker range={range} />} />
      <Stack gap="md">
        {isPending ? (
          <Loading />
        ) : (
          <Suspense fallback={<Loading />}>
            {isNew ? <Quickstart may={may} /> : <Figures forecast={forecast} range={range} />}
            <Lately mayAudit={may.includes("keys")} />
          </Suspense>
        )}
      </Stack>
    </>
  );
}

function Loading() {
  return <Skeleton height={220} radius="md" role="status" aria-label="Loading" />;
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
      {forecast.error && !forecast.data && (
        <ErrorState error={forecast.error} onRetry={() => forecast.refetch()} />
      )}
      {forecast.data && <Spend forecast={forecast.data} stale={stale} />}
      <BudgetPanel />
      <Served range={range} onOpen={(to) => void navigate(to)} />
    </>
  );
}
