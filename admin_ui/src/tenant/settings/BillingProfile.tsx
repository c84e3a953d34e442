/** Whom the tenant's invoices are for. */

import { Alert, Button, Group, SimpleGrid, Stack, Text, Textarea, TextInput } from "@mantine/core";
import { type FormEvent, useState } from "react";
import { useMayChange } from "../../api/roles";
import { formatDate } from "../../components/format";
import { Panel } from "../../components/Panel";
import { ErrorState, TableSkeleton } from "../../components/states";
import { type Profile, useProfile, usePutProfile } from "./queries";

export function BillingProfile() {
  const profile = useProfile(true);
  if (profile.error && !profile.data)
    return <ErrorState error={profile.error} onRetry={() => profile.refetch()} />;
  if (!profile.data) return <TableSkeleton rows={6} />;
  return <Form key={profile.data.updated_at ?? ""} profile={profile.data} />;
}

const TEXTS = { name: "Name on the invoice", email: "Email", tax_id: "Tax id" } as const;

function Form({ profile }: { profile: Profile }) {
  const mayChange = useMayChange("billing");
  const { name, email, tax_id, address } = profile;
  const [fields, setFields] = useState({ name, email, tax_id, address });
  const put = usePutProfile(() => undefined);
  const set = (changes: Partial<typeof fields>) => {
    setFields((before) => ({ ...before, ...changes }));
    put.reset();
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    put.mutate(fields);
  };
  return (
    <Panel title="Billing profile" note="For the next invoices; final ones do not change">
      <form onSubmit={submit}>
        <Stack maw={720}>
          {!mayChange && (
            <Text size="sm" c="dimmed">
              You can see the billing profile but not change it. Owners and people with the role
              billing can, and keys with the scope keys.
            </Text>
          )}
          <SimpleGrid cols={{ base: 1, xs: 2 }}>
            {(Object.entries(TEXTS) as [keyof typeof TEXTS, string][]).map(([field, label]) => (
              <TextInput
                key={field}
                label={label}
                maxLength={200}
                readOnly={!mayChange}
                value={fields[field]}
                onChange={(event) => set({ [field]: event.currentTarget.value })}
              />
            ))}
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
          <Text size="sm" c="dimmed">
            {profile.tax_rate === null
              ? "No tax is added to your invoices."
              : `${profile.tax_name || "Tax"} of ${profile.tax_rate}% is added to your invoices.`}{" "}
            The operator sets the tax.
          </Text>
          {put.error && <ErrorState error={put.error} title="The profile was not saved" />}
          {put.isSuccess && (
            <Alert color="teal" role="status">
              Saved.
            </Alert>
          )}
          <Group justify="space-between">
            <Text size="xs" c="dimmed">
              {profile.updated_at ? `Changed ${formatDate(profile.updated_at)}` : "Not filled in"}
            </Text>
            {mayChange && (
              <Button type="submit" loading={put.isPending}>
                Save the profile
              </Button>
            )}
          </Group>
        </Stack>
      </form>
    </Panel>
  );
}
