import { IconUsersGroup } from "@tabler/icons-react";
import { type Column, DataTable } from "../../components/DataTable";
import { formatDate } from "../../components/format";
import { EmptyState, ErrorState, TableSkeleton } from "../../components/states";
import { type Person, usePeople } from "./queries";

/** Who belongs to the tenant; its owners invite and remove. */
export function PeopleList({ tenant }: { tenant: string }) {
  const people = usePeople(tenant);
  if (people.isPending) return <TableSkeleton />;
  if (people.error) return <ErrorState error={people.error} onRetry={people.refetch} />;
  if (people.rows.length === 0)
    return (
      <EmptyState icon={<IconUsersGroup size={24} />} title="No people yet">
        People of this tenant appear here after they accept an invitation. Programs use API keys and
        need no person.
      </EmptyState>
    );
  const columns: Column<Person>[] = [
    { key: "who", header: "Person", cell: ({ email, name, id }) => email ?? name ?? id },
    { key: "role", header: "Role", cell: ({ role }) => role },
    {
      key: "seen",
      header: "Last sign-in",
      align: "right",
      cell: ({ signed_in_at }) => formatDate(signed_in_at),
    },
  ];
  return (
    <DataTable
      label="Tenant's people"
      columns={columns}
      rows={people.rows}
      rowKey={({ id }) => id}
      minWidth={480}
      {...people.more}
    />
  );
}
