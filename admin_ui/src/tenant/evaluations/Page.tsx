/** Evaluations: adapters asked one's own items, versions and the base model side by side. */

import { Anchor, Badge, Button } from "@mantine/core";
import { IconPlus, IconTestPipe } from "@tabler/icons-react";
import { Link, useNavigate, useSearchParams } from "react-router";
import { type Column, DataTable } from "../../components/DataTable";
import { formatCount, formatDate } from "../../components/format";
import { PageHeader } from "../../components/PageHeader";
import { useParam } from "../../components/SidePanel";
import { EmptyState, ErrorState, TableSkeleton } from "../../components/states";
import { type Evaluation, scoreText, subjectName } from "./model";
import { NewEvaluation } from "./NewEvaluation";
import { useEvaluations } from "./queries";
import { StateBadge } from "./StateBadge";

const COLUMNS: readonly Column<Evaluation>[] = [
  {
    key: "adapter",
    header: "Adapter",
    cell: (each) => (
      <Anchor component={Link} to={`/evaluations/${each.id}`} size="sm" fw={550}>
        {each.adapter}
      </Anchor>
    ),
  },
  { key: "state", header: "Status", cell: (each) => <StateBadge state={each.state} /> },
  { key: "scoring", header: "Scoring", cell: (each) => each.scoring },
  { key: "items", header: "Items", align: "right", cell: (each) => formatCount(each.items) },
  {
    key: "best",
    header: "Best score",
    cell: (each) => {
      const best = bestOf(each);
      return best ? (
        <>
          {subjectName(best.version)} <Badge>{scoreText(each.scoring, best.score)}</Badge>
        </>
      ) : (
        "–"
      );
    },
  },
  { key: "at", header: "Created", align: "right", cell: (each) => formatDate(each.created_at) },
];

function bestOf({ results }: Evaluation) {
  const scored = results.filter(({ score }) => score !== null);
  return scored.sort((a, b) => (b.score ?? 0) - (a.score ?? 0))[0];
}

export default function Page() {
  const evaluations = useEvaluations();
  const [params] = useSearchParams();
  const [wanted, setWanted] = useParam("adapter");
  const navigate = useNavigate();
  const rows = evaluations.data?.pages.flatMap((page) => page.data) ?? [];
  return (
    <>
      <PageHeader
        title="Evaluations"
        description="Run your own prompts with expected answers on adapter versions and the base model. Evaluations use the lowest class of your plan and are billed at its prices."
        action={
          <Button leftSection={<IconPlus size={16} />} onClick={() => setWanted("")}>
            Evaluate
          </Button>
        }
      />
      {evaluations.isPending && <TableSkeleton />}
      {evaluations.error && !evaluations.data && (
        <ErrorState error={evaluations.error} onRetry={() => evaluations.refetch()} />
      )}
      {evaluations.data && rows.length === 0 && (
        <EmptyState icon={<IconTestPipe size={24} />} title="No evaluations yet">
          Test an adapter on questions with known answers to see whether a new version is better
          than the previous one and the base model.
        </EmptyState>
      )}
      {rows.length > 0 && (
        <DataTable
          label="Evaluations"
          columns={COLUMNS}
          rows={rows}
          rowKey={({ id }) => id}
          hasMore={evaluations.hasNextPage}
          isLoadingMore={evaluations.isFetchingNextPage}
          onMore={() => void evaluations.fetchNextPage()}
        />
      )}
      <NewEvaluation
        opened={params.has("adapter")}
        adapter={wanted}
        onClose={() => setWanted(null)}
        onCreated={(id) => navigate(`/evaluations/${id}`)}
      />
    </>
  );
}
