import { TextInput } from "@mantine/core";
import { useDebouncedCallback } from "@mantine/hooks";
import { IconSearch } from "@tabler/icons-react";
import { useEffect, useState } from "react";
import { useParam } from "./SidePanel";

const PAUSE_MS = 250;

interface SearchFieldProps {
  label: string;
  placeholder: string;
  /** The parameter of the address that holds it. */
  param?: string;
}

/** What a list is searched for, kept in the address once whoever types pauses. */
export function SearchField({ label, placeholder, param = "q" }: SearchFieldProps) {
  const [value, setValue] = useParam(param);
  const [text, setText] = useState(value ?? "");
  useEffect(() => {
    if (value === null) setText(""); // it was taken away elsewhere
  }, [value]);
  const settle = useDebouncedCallback((next: string, path: string) => {
    // Whoever has gone on to another page in between is not fetched back.
    if (window.location.pathname === path) setValue(next || null);
  }, PAUSE_MS);
  return (
    <TextInput
      type="search"
      aria-label={label}
      placeholder={placeholder}
      leftSection={<IconSearch size={15} aria-hidden />}
      value={text}
      onChange={(event) => {
        setText(event.currentTarget.value);
        settle(event.currentTarget.value.trim(), window.location.pathname);
      }}
      maw={320}
      flex={1}
      miw={180}
    />
  );
}
