import { Alert, Button, Group, SimpleGrid, Stack, Text, Textarea, TextInput } from "@mantine/core";
import { type FormEvent, useState } from "react";
import { useIsRole } from "../../api/roles";
import { isDecimal } from "../../components/decimal";
import { formatDate } from "../../components/format";
import { Panel } from "../../components/Panel";
import { ErrorState, TableSkeleton } from "../../components/states";
import { type Profile, useProfile, usePutProfile } from "./queries";

/** Whom the tenant's invoices are for, and their tax. */
export function ProfileForm({ tenant }: { tenant: string }) {
  const profile = useProfile(tenant);
  if (profile.error && !profile.data)
    return <ErrorState error={profile.error} onRetry={() => profile.refetch()} />;
  if (!profile.data) return <TableSkeleton />;
  return <Form key={profile.data.updated_at ?? ""} profile={profile.data} />;
}

const TEXTS = {
  name: "Name on the invoice",
  email: "Email",
  tax_id: "Tax ID",
  tax_name: "Tax name",
} as const;

function Form({ profile }: { profile: Profile }) {
  const mayChange = useIsRole("billing");
  const [fields, setFields] = useState({
    ...profile,
    tax_rate: profile.tax_rate ?? "",
    tax_since: "",
  });
  const [isSaved, setSaved] = useState(false);
  const put = usePutProfile(profile.tenant_id, () => setSaved(true));
  const set = (changes: Partial<typeof fields>) => {
    setFields((before) => ({ ...before, ...changes }));
    setSaved(false);
    put.reset();
  };
  const rateFault =
    fields.tax_rate !== "" &&
    !isDecimal(fields.tax_rate) &&
    "Enter a percentage such as 19, or leave this empty";
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (rateFault) return;
    const { name, address, email, tax_id, tax_name } = fields;
    const tax_rate = fields.tax_rate || null;
    const tax_since = fields.tax_since || null;
    put.mutate({ name, address, email, tax_id, tax_name, tax_rate, tax_since });
  };
  return (
    <Panel title="Billing profile" note="Used on future invoices. Final invoices do not change.">
      <form onSubmit={submit}>
        <Stack maw={720}>
          <SimpleGrid cols={{ base: 1, xs: 2 }}>
            {(Object.entries(TEXTS) as [keyof typeof TEXTS, string][]).map(([name, label]) => (
              <TextInput
                key={name}
                label={label}
                maxLength={200}
                readOnly={!mayChange}
                value={fields[name]}
                onChange={(event) => set({ [name]: event.currentTarget.value })}
              />
            ))}
            <TextInput
              label="Tax rate, %"
              description="Leave empty for no tax"
              inputMode="decimal"
              readOnly={!mayChange}
              value={fields.tax_rate}
              error={rateFault}
              onChange={(event) => set({ tax_rate: event.currentTarget.value.trim() })}
            />
            <TextInput
              type="date"
              label="Tax applies from"
              description={
                profile.tax_rate
                  ? `Now from ${profile.tax_since}; empty: a changed tax applies from today`
                  : "Empty: from today. An invoice has the tax of its month's last day"
              }
              readOnly={!mayChange}
              value={fields.tax_since}
              onChange={(event) => set({ tax_since: event.currentTarget.value })}
            />
          </SimpleGrid>
          <Textarea
            label="Address"
            autosize
            minRows={3}
            maxLength={1000}
            readOnly={!mayChange}
            value={fields.address}
            onChange={(event) => set({ address: event.currentTarget.value })}
          />
          {put.error && <ErrorState error={put.error} />}
          {isSaved && (
            <Alert color="teal" role="status">
              Saved.
            </Alert>
          )}
          <Group justify="space-between">
            <Text size="xs" c="dimmed">
              {profile.updated_at
                ? `Last changed ${formatDate(profile.updated_at)}`
                : "Not filled in yet"}
            </Text>
            {mayChange && (
              <Button type="submit" loading={put.isPending}>
                Save profile
              </Button>
            )}
          </Group>
        </Stack>
      </form>
    </Panel>
  );
}
