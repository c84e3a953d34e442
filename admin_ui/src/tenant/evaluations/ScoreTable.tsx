import { Progress, Table, Text } from "@mantine/core";
import { formatCount } from "../../components/format";
import { Scrollable } from "../../components/Scrollable";
import { areApart, type Evaluation, intervalText, scoreText, subjectName } from "./model";

/** Each subject's score with its interval, side by side. */
export function ScoreTable({ evaluation }: { evaluation: Evaluation }) {
  const { results, scoring, items } = evaluation;
  const base = results.find(({ version }) => version === "base");
  return (
    <Scrollable label="Scores">
      <Table aria-label="Scores" verticalSpacing={6} miw={520}>
        <Table.Thead>
          <Table.Tr>
            <Table.Th>Version</Table.Th>
            <Table.Th ta="right">Score</Table.Th>
            <Table.Th ta="right">95% interval</Table.Th>
            <Table.Th>Compared with base</Table.Th>
            <Table.Th ta="right">Completed</Table.Th>
            <Table.Th ta="right">Errors</Table.Th>
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {results.map((result) => (
            <Table.Tr key={String(result.version)}>
              <Table.Td>
                {subjectName(result.version)}
                {scoring !== "loglikelihood" && (
                  <Progress
                    value={(result.score ?? 0) * 100}
                    size={4}
                    mt={4}
                    aria-label={`Score of ${subjectName(result.version)}`}
                  />
                )}
              </Table.Td>
              <Table.Td ta="right" fw={600}>
                {scoreText(scoring, result.score)}
              </Table.Td>
              <Table.Td ta="right">{intervalText(scoring, result.low, result.high)}</Table.Td>
              <Table.Td>
                <Text size="sm">{besideBase(result, base)}</Text>
              </Table.Td>
              <Table.Td ta="right">
                {formatCount(result.answered)} of {formatCount(items)}
              </Table.Td>
              <Table.Td ta="right">{formatCount(result.errors)}</Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </Scrollable>
  );
}

type Result = Evaluation["results"][number];

function besideBase(result: Result, base: Result | undefined): string {
  if (base === undefined || result.version === "base") return "";
  if (result.score === null || base.score === null) return "";
  if (!areApart(result, base)) return "no clear difference";
  return result.score > base.score ? "better" : "worse";
}
