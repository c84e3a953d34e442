/** The tenant's first page: what it spends, how it is served, what changed. */

import { Skeleton, Stack } from "@mantine/core";
import { lazy, Suspense } from "react";
import { useSession } from "../../api/context";
import { PageHeader } from "../../components/PageHeader";
import { RangePicker, useRange } from "../../components/range";
import { useAccountBudget } from "../budget/queries";
import { Lately } from "./Lately";
import { useForecast, useIsNew } from "./queries";

/** The one of new tenants alone, the other, with the charts, of the others. */
const Quickstart = lazy(() => import("./Quickstart"));
const loadFigures = () => import("./Figures");
const Figures = lazy(loadFigures);

export default function Page() {
  const may = useSession().session?.place?.may ?? [];
  const range = useRange("24h");
  const forecast = useForecast();
  const isNew = useIsNew();
  const budget = useAccountBudget(null, isNew === false);
  if (isNew === false) void loadFigures(); // beside what they show
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
  return <Skeleton height={220} radius="md" role="status" aria-label="Loading" data-loading />;
}
