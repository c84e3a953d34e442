import {
  Alert,
  Anchor,
  Button,
  Group,
  NativeSelect,
  SimpleGrid,
  Stack,
  Table,
  Text,
} from "@mantine/core";
import { Amounts } from "../../components/Amounts";
import { type Column, DataTable } from "../../components/DataTable";
import { type ByCurrency, differences } from "../../components/decimal";
import { counted, formatCount } from "../../components/format";
import { Panel } from "../../components/Panel";
import { Scrollable } from "../../components/Scrollable";
import { SidePanel, useParam } from "../../components/SidePanel";
import { ErrorState, TableSkeleton } from "../../components/states";
import { isMeter, METER_NAMES } from "../prices/model";
import { type Preview, type Row, rowsOf, verdictOf } from "./model";

interface PreviewViewProps {
  months: readonly string[];
  month: string;
  onMonth: (month: string) => void;
  isBusy: boolean;
  /** Of something else than what is written now. */
  isOld: boolean;
  error: Error | null;
  preview: Preview | null;
}

/** Last month as it was and as it would have been, by tenant. */
export function PreviewView(props: PreviewViewProps) {
  const { months, month, onMonth, isBusy, isOld, error, preview } = props;
  return (
    <Panel
      title="Preview"
      note="Charges of a month, as they were and as they would be with this list"
      stale={isOld ? "out of date: the list was edited" : null}
      action={
        <Group gap="xs">
          <NativeSelect
            aria-label="Preview month"
            size="xs"
            value={month}
            data={months.map((value, index) => ({
              value,
              label: index === 0 ? `${value} to date` : value,
            }))}
            onChange={(event) => onMonth(event.currentTarget.value)}
          />
          <Button type="submit" size="xs" variant="light" loading={isBusy}>
            Preview
          </Button>
        </Group>
      }
    >
      {error && <ErrorState error={error} />}
      {isBusy && preview === null && <TableSkeleton />}
      {!error && !isBusy && preview === null && (
        <Text size="sm" c="dimmed">
          A preview changes nothing. It applies the list to all usage it covers, except usage rated
          by a more specific list.
        </Text>
      )}
      {preview !== null && <Result preview={preview} />}
    </Panel>
  );
}

function Result({ preview }: { preview: Preview }) {
  const rows = rowsOf(preview);
  const verdict = verdictOf(rows);
  return (
    <Stack gap="sm">
      <SimpleGrid cols={{ base: 1, xs: 3 }} data-testid="preview-totals">
        <Side
          label={`Charged for ${preview.month}`}
          of={preview.due_before}
          testId="preview-before"
        />
        <Side label="With this list" of={preview.due_after} testId="preview-after" />
        <Side
          label="Difference"
          of={differences(preview.due_before, preview.due_after)}
          testId="preview-change"
          isChange
        />
      </SimpleGrid>
      <Text size="sm">
        {rows.length === 0
          ? `There was no billable usage in ${preview.month}.`
          : `${tenants(verdict.more)} would pay more, ${tenants(verdict.less)} less, ${tenants(verdict.same)} the same.`}
      </Text>
      {verdict.unpriced > 0 && (
        <Alert color="yellow" title="Some usage would have no price">
          The list has no price for some meters or classes that {tenants(verdict.unpriced)} used.
          This usage is not included in the totals.
        </Alert>
      )}
      {rows.length > 0 && <ByTenant rows={rows} />}
    </Stack>
  );
}

const tenants = (count: number) => counted(count, "tenant");

interface SideProps {
  label: string;
  of: ByCurrency;
  testId: string;
  isChange?: boolean;
}

function Side({ label, of, testId, isChange }: SideProps) {
  return (
    <Stack gap={0}>
      <Text size="xs" c="dimmed">
        {label}
      </Text>
      <Text fw={600} data-testid={testId}>
        <Amounts of={of} isChange={isChange} />
      </Text>
    </Stack>
  );
}

function ByTenant({ rows }: { rows: readonly Row[] }) {
  const [, open] = useParam("of");
  const columns: Column<Row>[] = [
    {
      key: "tenant",
      header: "Tenant",
      width: "34%",
      cell: ({ tenant, name }) => (
        <Anchor
          component="button"
          type="button"
          size="sm"
          maw={190}
          truncate
          title={name}
          onClick={() => open(tenant)}
        >
          {name}
        </Anchor>
      ),
    },
    { key: "before", header: "Before", align: "right", cell: (row) => <Amounts of={row.before} /> },
    { key: "after", header: "After", align: "right", cell: (row) => <Amounts of={row.after} /> },
    {
      key: "change",
      header: "Change",
      align: "right",
      cell: (row) => <Amounts of={row.change} isChange />,
    },
  ];
  return (
    <>
      <DataTable
        label="Preview by tenant"
        columns={columns}
        rows={rows}
        rowKey={({ tenant }) => tenant}
        total={rows.length}
        minWidth={480}
        maxHeight={420}
        rowHeight={38}
      />
      <SidePanel param="of" title={(id) => rows.find((row) => row.tenant === id)?.name ?? id}>
        {(id) => {
          const row = rows.find((each) => each.tenant === id);
          return row ? <Meters row={row} /> : null;
        }}
      </SidePanel>
    </>
  );
}

function Meters({ row }: { row: Row }) {
  return (
    <Stack>
      <Scrollable label="By meter">
        <Table aria-label="By meter" miw={520}>
          <Table.Thead>
            <Table.Tr>
              <Table.Th>Meter</Table.Th>
              <Table.Th>Class</Table.Th>
              <Table.Th ta="right">Quantity</Table.Th>
              <Table.Th ta="right">Before</Table.Th>
              <Table.Th ta="right">After</Table.Th>
            </Table.Tr>
          </Table.Thead>
          <Table.Tbody>
            {row.preview.meters.map((each) => (
              <Table.Tr key={`${each.meter} ${each.class}`}>
                <Table.Td>
                  {isMeter(each.meter) ? METER_NAMES[each.meter].label : each.meter}
                </Table.Td>
                <Table.Td>{each.class ?? "–"}</Table.Td>
                <Table.Td ta="right">{formatCount(each.quantity)}</Table.Td>
                <Table.Td ta="right">
                  <Amounts of={each.before} />
                </Table.Td>
                <Table.Td ta="right">
                  <Amounts of={each.after} />
                  {each.unpriced > 0 && (
                    <Text size="xs">{formatCount(each.unpriced)} without a price</Text>
                  )}
                </Table.Td>
              </Table.Tr>
            ))}
          </Table.Tbody>
        </Table>
      </Scrollable>
      <Text size="sm">
        Usage only: <Amounts of={row.preview.before} /> before, <Amounts of={row.preview.after} />{" "}
        after. With included usage and monthly minimums: <Amounts of={row.before} /> before,{" "}
        <Amounts of={row.after} /> after.
      </Text>
    </Stack>
  );
}
