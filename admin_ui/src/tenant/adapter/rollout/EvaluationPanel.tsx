import { Anchor, Text } from "@mantine/core";
import { Link } from "react-router";
import { formatDate } from "../../../components/format";
import { Panel } from "../../../components/Panel";
import { ErrorState } from "../../../components/states";
import { ScoreTable } from "../../evaluations/ScoreTable";
import { useEvaluationsOf } from "./queries";

/** The newest evaluation of the adapter, its versions side by side. */
export function EvaluationPanel({ adapter }: { adapter: string }) {
  const { ended, error, data } = useEvaluationsOf(adapter);
  const newest = ended?.[0];
  return (
    <Panel
      title="Scores"
      note={
        newest
          ? `${newest.scoring}, ${newest.items} items, ${formatDate(newest.created_at)}`
          : "Compare versions on your own test items"
      }
      action={
        <Anchor
          component={Link}
          size="sm"
          to={newest ? `/evaluations/${newest.id}` : `/evaluations?adapter=${adapter}`}
        >
          {newest ? "Show responses" : "Evaluate"}
        </Anchor>
      }
    >
      {error && !data && <ErrorState error={error} />}
      {newest ? (
        <ScoreTable evaluation={newest} />
      ) : (
        <Text size="sm" c="dimmed">
          No evaluation has finished yet. Run one to compare versions.
        </Text>
      )}
    </Panel>
  );
}
