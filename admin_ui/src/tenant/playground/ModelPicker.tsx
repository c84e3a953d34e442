/** One model of all that can be asked; the server searches. */

import { Select } from "@mantine/core";
import { useDebouncedValue } from "@mantine/hooks";
import { useState } from "react";
import { useModelOptions } from "./queries";

interface ModelPickerProps {
  label: string;
  model: string | null;
  onModel: (model: string) => void;
}

export function ModelPicker({ label, model, onModel }: ModelPickerProps) {
  const [text, setText] = useState("");
  const [asked] = useDebouncedValue(text, 200);
  // The field holds the chosen one's name until something else is typed.
  const isSearched = asked !== model;
  const { options = [] } = useModelOptions(isSearched ? asked : "");
  const base = options.find(({ isBase }) => isBase)?.value;
  const found = new Set(options.map(({ value }) => value));
  const chosen = model === null || found.has(model) ? [] : [{ value: model, label: model }];
  return (
    <Select
      flex={1}
      aria-label={label}
      data={[...chosen, ...options]}
      filter={({ options: all }) =>
        isSearched ? all.filter((each) => "value" in each && found.has(each.value)) : all
      }
      value={model}
      onChange={(value) => value !== null && onModel(value)}
      onSearchChange={setText}
      renderOption={({ option }) => (
        <span>
          {option.label} {option.value === base && <small>base model</small>}
        </span>
      )}
      allowDeselect={false}
      searchable
      nothingFoundMessage="No models match"
    />
  );
}
