/** What a tenant spends, its budget, and how it is served. */

import { useNavigate } from "react-router";
import type { Range } from "../../components/range";
import { ErrorState } from "../../components/states";
import { useStale } from "../../live/stale";
import BudgetPanel from "../budget/BudgetPanel";
import type { useForecast } from "./queries";
import { Served } from "./Served";
import { Spend } from "./Spend";

interface FiguresProps {
  forecast: ReturnType<typeof useForecast>;
  range: Range;
}

export default function Figures({ forecast, range }: FiguresProps) {
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
