/** Finds pages by name and things by what they are called, from anywhere by Ctrl-K. */

import { Combobox, Group, Loader, Modal, Text, TextInput, useCombobox } from "@mantine/core";
import { useDebouncedValue, useHotkeys } from "@mantine/hooks";
import { IconSearch } from "@tabler/icons-react";
import { useEffect, useState } from "react";
import { useNavigate } from "react-router";
import { useSession } from "../api/context";
import { Scrollable } from "../components/Scrollable";
import { routesOf } from "../routes";
import { fits, type Hit } from "./model";
import { useSearch } from "./queries";

interface SearchProps {
  isOpen: boolean;
  onClose: () => void;
}

export default function Search({ isOpen, onClose }: SearchProps) {
  return (
    <Modal
      opened={isOpen}
      onClose={onClose}
      title={<Text fw={600}>Search</Text>}
      size="lg"
      centered={false}
      yOffset="10vh"
      closeButtonProps={{ "aria-label": "Close" }}
    >
      <Finder onDone={onClose} />
    </Modal>
  );
}

const PAUSE_MS = 150;

function Finder({ onDone }: { onDone: () => void }) {
  const { session } = useSession();
  const navigate = useNavigate();
  const [text, setText] = useState("");
  const typed = text.trim();
  const [asked] = useDebouncedValue(typed, PAUSE_MS);
  const found = useSearch(asked);
  const combobox = useCombobox({ opened: true });
  // The list of what is found takes Escape for itself, and never closes.
  useHotkeys([["Escape", onDone]], []);
  const pages: Hit[] = routesOf(session?.place ?? null)
    .filter(({ path, label }) => !path.includes(":") && fits(label, typed))
    .map(({ path, label, menu }) => ({ id: path, label, note: menu?.group ?? "", to: path }));
  const groups = [...(pages.length > 0 ? [{ name: "Pages", hits: pages }] : []), ...found.groups];
  const count = groups.reduce((sum, { hits }) => sum + hits.length, 0);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the first of what is found is chosen anew
  useEffect(() => {
    combobox.selectFirstOption();
  }, [typed, count]);
  return (
    <Combobox
      store={combobox}
      onOptionSubmit={(to) => {
        onDone();
        void navigate(to);
      }}
    >
      <Combobox.EventsTarget>
        <TextInput
          data-autofocus
          aria-label="Search for"
          placeholder={
            session?.place?.role === "admin"
              ? "A page, tenant, adapter, request or invoice"
              : "A page, adapter, request, key or invoice"
          }
          leftSection={<IconSearch size={16} />}
          rightSection={found.isSearching ? <Loader size="xs" /> : null}
          value={text}
          onChange={(event) => setText(event.currentTarget.value)}
        />
      </Combobox.EventsTarget>
      <Scrollable label="Results" style={{ maxHeight: "58dvh", marginTop: 12 }}>
        <Combobox.Options aria-label="Results">
          {groups.map(({ name, hits }) => (
            <Combobox.Group label={name} key={name}>
              {hits.map(({ id, label, note, to }) => (
                <Combobox.Option value={to} key={`${name} ${id}`}>
                  <Group justify="space-between" gap="sm" wrap="nowrap">
                    <Text size="sm" truncate>
                      {label}
                    </Text>
                    <Text size="xs" c="dimmed" truncate>
                      {note}
                    </Text>
                  </Group>
                </Combobox.Option>
              ))}
            </Combobox.Group>
          ))}
          {count === 0 && !found.isSearching && (
            <Combobox.Empty>No results. Check the spelling or search for an ID.</Combobox.Empty>
          )}
        </Combobox.Options>
      </Scrollable>
      {found.failed.length > 0 && (
        <Text size="xs" c="orange" mt="xs" role="status">
          Could not be searched: {found.failed.join(", ")}.
        </Text>
      )}
    </Combobox>
  );
}
