/** Finds pages by name, from anywhere by Ctrl-K. */

import { Modal, NavLink, TextInput } from "@mantine/core";
import { useHotkeys } from "@mantine/hooks";
import { IconSearch } from "@tabler/icons-react";
import { useState } from "react";
import { Link } from "react-router";
import { useSession } from "../api/context";
import { routesOf } from "../routes";

interface SearchProps {
  isOpen: boolean;
  setOpen: (isOpen: boolean) => void;
}

export default function Search({ isOpen, setOpen }: SearchProps) {
  const { session } = useSession();
  const [text, setText] = useState("");
  useHotkeys([["mod+K", () => setOpen(true)]], []);
  const close = () => {
    setOpen(false);
    setText("");
  };
  const found = routesOf(session?.place ?? null).filter(
    ({ path, label }) =>
      !path.includes(":") && label.toLowerCase().includes(text.trim().toLowerCase()),
  );
  return (
    <Modal opened={isOpen} onClose={close} title="Search" size="md" yOffset="12vh">
      <TextInput
        data-autofocus
        aria-label="Search for"
        placeholder="A page"
        leftSection={<IconSearch size={16} />}
        value={text}
        onChange={(event) => setText(event.currentTarget.value)}
        mb="sm"
      />
      {found.map(({ path, label, menu }) => (
        <NavLink
          key={path}
          component={Link}
          to={path}
          label={label}
          leftSection={menu && <menu.Icon size={16} />}
          onClick={close}
        />
      ))}
    </Modal>
  );
}
