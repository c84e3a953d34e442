import { Select } from "@mantine/core";
import { useDebouncedValue } from "@mantine/hooks";
import { useState } from "react";
import { useTenants } from "./tenants/queries";

interface TenantPickerProps {
  label: string;
  value: string | null;
  onChange: (id: string | null) => void;
  error?: string;
  placeholder?: string;
  clearable?: boolean;
  description?: string;
}

/** A tenant by a part of its name or id; the server searches. */
export function TenantPicker({ value, onChange, ...rest }: TenantPickerProps) {
  const [text, setText] = useState("");
  const [known, setKnown] = useState<Record<string, string>>({});
  const [asked] = useDebouncedValue(text, 200);
  const chosen = value === null ? undefined : known[value];
  const q = asked === "" || asked === chosen ? (value ?? undefined) : asked;
  const { rows } = useTenants({ sort: "name", q });
  const names = Object.fromEntries(rows.map(({ id, name }) => [id, name]));
  const data = rows.map(({ id, name }) => ({ value: id, label: name }));
  if (value !== null && names[value] === undefined)
    data.push({ value, label: known[value] ?? value });
  return (
    <Select
      searchable
      filter={({ options }) => options}
      placeholder="Name or ID"
      nothingFoundMessage="No tenants match"
      limit={50}
      data={data}
      value={value}
      onSearchChange={setText}
      onChange={(id) => {
        if (id !== null) setKnown((before) => ({ ...before, [id]: names[id] ?? id }));
        onChange(id);
      }}
      renderOption={({ option }) => (
        <span>
          {option.label} <small>{option.value.slice(-6)}</small>
        </span>
      )}
      {...rest}
    />
  );
}
