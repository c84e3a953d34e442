import { Button, Group, Radio, SimpleGrid, Stack, TextInput } from "@mantine/core";
import { type FormEvent, useState } from "react";
import { ErrorState } from "../../components/states";
import { TenantPicker } from "../TenantPicker";
import type { Run } from "./model";
import { useAsk } from "./queries";

interface AskFormProps {
  onAsked: (run: Run) => void;
  onClose: () => void;
}

/** Asks for a run; nothing in the books changes by it. */
export function AskForm({ onAsked, onClose }: AskFormProps) {
  const [mode, setMode] = useState<"full" | "recent">("full");
  const [tenant, setTenant] = useState<string | null>(null);
  const [first, setFirst] = useState("");
  const [last, setLast] = useState("");
  const ask = useAsk(onAsked);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    ask.mutate({ mode, tenant, first: first || null, last: last || null });
  };
  return (
    <form onSubmit={submit}>
      <Stack>
        <Radio.Group
          label="What to compare"
          value={mode}
          onChange={(value) => setMode(value === "recent" ? "recent" : "full")}
        >
          <Stack gap="xs" mt={6}>
            <Radio value="full" label="Everything: every event and all that follows from it" />
            <Radio value="recent" label="Only changes since the last successful check" />
          </Stack>
        </Radio.Group>
        <TenantPicker
          label="Tenant"
          placeholder="All tenants"
          clearable
          value={tenant}
          onChange={setTenant}
        />
        <SimpleGrid cols={2}>
          <TextInput
            label="First day (UTC)"
            type="date"
            value={first}
            onChange={(event) => setFirst(event.currentTarget.value)}
          />
          <TextInput
            label="Last day (UTC)"
            type="date"
            value={last}
            onChange={(event) => setLast(event.currentTarget.value)}
          />
        </SimpleGrid>
        {ask.error && <ErrorState error={ask.error} />}
        <Group justify="flex-end">
          <Button variant="default" onClick={onClose}>
            Cancel
          </Button>
          <Button type="submit" loading={ask.isPending}>
            Compare
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
