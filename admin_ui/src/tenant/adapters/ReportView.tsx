/** What the intake check found: reasons and warnings field by field, then the measured facts. */

import { Alert, Badge, Code, Stack, Table, Text } from "@mantine/core";
import { IconAlertTriangle, IconCircleX } from "@tabler/icons-react";
import type { Schemas } from "../../api/client";
import { formatCount, formatNorm } from "../../components/format";

type Report = Schemas["ValidationReport"];
type Problem = Schemas["Problem"];

export function ReportView({ report }: { report: Report }) {
  const warnings = report.warnings ?? [];
  return (
    <Stack gap="md">
      {report.problems.length > 0 && (
        <Alert
          color="red"
          icon={<IconCircleX size={18} />}
          title={`Rejected for ${report.problems.length === 1 ? "one reason" : `${report.problems.length} reasons`}`}
        >
          <ProblemTable
            problems={report.problems}
            label="Reasons for the rejection"
            what="What is wrong"
          />
        </Alert>
      )}
      {warnings.length > 0 && (
        <Alert color="yellow" icon={<IconAlertTriangle size={18} />} title="Accepted, but note">
          <ProblemTable problems={warnings} label="Warnings" what="What to know" />
        </Alert>
      )}
      {report.facts && <Facts facts={report.facts} />}
    </Stack>
  );
}

interface ProblemTableProps {
  problems: Problem[];
  label: string;
  what: string;
}

function ProblemTable({ problems, label, what }: ProblemTableProps) {
  return (
    <Table.ScrollContainer minWidth={320} maxHeight={320} type="native">
      <Table
        aria-label={label}
        layout="fixed"
        verticalSpacing={6}
        horizontalSpacing="xs"
        withRowBorders={false}
      >
        <Table.Thead>
          <Table.Tr>
            <Table.Th w="38%">Field</Table.Th>
            <Table.Th>{what}</Table.Th>
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {problems.map((problem) => (
            <Table.Tr key={`${problem.field} ${problem.code} ${problem.message}`}>
              <Table.Td style={{ verticalAlign: "top" }}>
                <Code style={{ overflowWrap: "anywhere" }}>{problem.field}</Code>
              </Table.Td>
              <Table.Td style={{ verticalAlign: "top", overflowWrap: "anywhere" }}>
                <Text size="sm">{problem.message}</Text>
                <Text size="xs" c="dimmed" ff="monospace">
                  {problem.code}
                </Text>
              </Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </Table.ScrollContainer>
  );
}

function Facts({ facts }: { facts: Schemas["AdapterFacts"] }) {
  return (
    <div>
      <Text size="sm" c="dimmed" mb={6}>
        {formatCount(facts.parameters)} parameters in {facts.tensors_applied} of {facts.tensors}{" "}
        tensors, {facts.layers.length} layers, {facts.dtypes.join(", ")}, scaling{" "}
        {formatNorm(facts.scaling)}
      </Text>
      <Table.ScrollContainer minWidth={420} type="native">
        <Table aria-label="Modules" verticalSpacing={6} horizontalSpacing="xs">
          <Table.Thead>
            <Table.Tr>
              <Table.Th>Module</Table.Th>
              <Table.Th ta="right">Layers</Table.Th>
              <Table.Th ta="right">Rank</Table.Th>
              <Table.Th ta="right">Norm of A</Table.Th>
              <Table.Th ta="right">Norm of B</Table.Th>
            </Table.Tr>
          </Table.Thead>
          <Table.Tbody>
            {facts.modules.map((module) => (
              <Table.Tr key={module.module}>
                <Table.Td>
                  <Badge color="gray">{module.module}</Badge>
                </Table.Td>
                <Table.Td ta="right">{module.layers}</Table.Td>
                <Table.Td ta="right">
                  {module.rank_min === module.rank_max
                    ? module.rank_max
                    : `${module.rank_min}–${module.rank_max}`}
                </Table.Td>
                <Table.Td ta="right">{formatNorm(module.norm_a)}</Table.Td>
                <Table.Td ta="right">{formatNorm(module.norm_b)}</Table.Td>
              </Table.Tr>
            ))}
          </Table.Tbody>
        </Table>
      </Table.ScrollContainer>
    </div>
  );
}
