/** One evaluation: scores side by side, and each item with what every subject answered. */

import { Anchor, Badge, Button, Card, Group, SimpleGrid, Stack, Text } from "@mantine/core";
import { Link, useParams } from "react-router";
import type { Schemas } from "../../api/client";
import { formatCount, formatDate } from "../../components/format";
import { PageHeader } from "../../components/PageHeader";
import { Panel } from "../../components/Panel";
import { ErrorState, TableSkeleton } from "../../components/states";
import { type Evaluation, scoreText, subjectName } from "../evaluations/model";
import { ScoreTable } from "../evaluations/ScoreTable";
import { StateBadge } from "../evaluations/StateBadge";
import { useCancel, useEvaluation, useItems } from "./queries";

const OPEN = ["queued", "running"];

export default function Page() {
  const { evaluation: id = "" } = useParams();
  const { data, error, isPending, refetch } = useEvaluation(id);
  return (
    <>
      <PageHeader
        title={data ? `Evaluation of ${data.adapter}` : "Evaluation"}
        back={{ to: "/evaluations", label: "Evaluations" }}
        beside={data && <StateBadge state={data.state} />}
        description={
          data &&
          `${formatCount(data.items)} items, scored by ${data.scoring}, created ${formatDate(data.created_at)}`
        }
        action={data && OPEN.includes(data.state) && <Cancel id={id} />}
      />
      {isPending && <TableSkeleton />}
      {error && !data && <ErrorState error={error} onRetry={() => refetch()} />}
      {data && (
        <Stack>
          {data.error && <ErrorState title="The evaluation failed" error={new Error(data.error)} />}
          <Panel title="Scores">
            <ScoreTable evaluation={data} />
          </Panel>
          <Items evaluation={data} />
        </Stack>
      )}
    </>
  );
}

function Cancel({ id }: { id: string }) {
  const cancel = useCancel();
  return (
    <Button
      variant="default"
      loading={cancel.isPending}
      onClick={() => cancel.mutate({ params: { path: { evaluation_id: id } } })}
    >
      Cancel evaluation
    </Button>
  );
}

function Items({ evaluation }: { evaluation: Evaluation }) {
  const items = useItems(evaluation.id, !OPEN.includes(evaluation.state));
  const all = items.data?.pages.flatMap((page) => page.data) ?? [];
  if (items.error && !items.data) return <ErrorState error={items.error} />;
  return (
    <Stack gap="sm">
      {all.map((item) => (
        <ItemCard key={item.no} item={item} evaluation={evaluation} />
      ))}
      {items.hasNextPage && (
        <Group justify="center">
          <Button
            variant="default"
            loading={items.isFetchingNextPage}
            onClick={() => void items.fetchNextPage()}
          >
            Load more items
          </Button>
        </Group>
      )}
    </Stack>
  );
}

interface ItemCardProps {
  item: Schemas["ItemView"];
  evaluation: Evaluation;
}

function ItemCard({ item, evaluation }: ItemCardProps) {
  const expected = textOf(item.item.expected);
  return (
    <Card component="section" padding="md" aria-label={`Item ${item.no}`}>
      <Text size="xs" c="dimmed">
        Item {item.no}
      </Text>
      <Text size="sm">{promptOf(item.item)}</Text>
      {expected && (
        <Text size="xs" c="dimmed" mt={4}>
          expected: {expected}
        </Text>
      )}
      <SimpleGrid cols={{ base: 1, sm: Math.min(item.answers.length || 1, 3) }} mt="sm">
        {item.answers.map((answer) => (
          <div key={String(answer.version)}>
            <Group gap={6} mb={2}>
              <Text size="xs" fw={600}>
                {subjectName(answer.version)}
              </Text>
              <Badge color={(answer.score ?? 0) >= 1 ? "teal" : "gray"}>
                {answer.error ? "error" : scoreText(evaluation.scoring, answer.score)}
              </Badge>
              {answer.request_ids[0] && (
                <Anchor component={Link} size="xs" to={`/requests/${answer.request_ids[0]}`}>
                  Receipt<span hidden> of {subjectName(answer.version)}</span>
                </Anchor>
              )}
            </Group>
            <Text size="sm">{answer.error ?? answer.answer ?? "–"}</Text>
          </div>
        ))}
      </SimpleGrid>
    </Card>
  );
}

function promptOf(item: Schemas["ItemView"]["item"]): string {
  const prompt = textOf(item.prompt);
  if (prompt !== null) return prompt;
  const messages: unknown = item.messages;
  if (!Array.isArray(messages)) return "";
  return messages
    .map((message: unknown) =>
      typeof message === "object" && message !== null && "content" in message
        ? textOf(message.content)
        : null,
    )
    .filter((text) => text !== null)
    .join("\n");
}

function textOf(value: unknown): string | null {
  return typeof value === "string" ? value : null;
}
