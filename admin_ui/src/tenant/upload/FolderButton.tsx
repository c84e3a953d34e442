import { Button, type ButtonProps } from "@mantine/core";
import { IconFolderOpen } from "@tabler/icons-react";
import { type ReactNode, useRef } from "react";
import { type Entry, entriesOf } from "./folder";

interface FolderButtonProps extends ButtonProps {
  label: string;
  onChosen: (entries: Entry[]) => void;
  children: ReactNode;
}

/** Lets a whole folder be chosen, with what is below it. */
export function FolderButton({ label, onChosen, children, ...button }: FolderButtonProps) {
  const input = useRef<HTMLInputElement | null>(null);
  return (
    <>
      <Button
        variant="default"
        leftSection={<IconFolderOpen size={16} />}
        onClick={() => input.current?.click()}
        {...button}
      >
        {children}
      </Button>
      <input
        ref={(element) => {
          input.current = element;
          element?.setAttribute("webkitdirectory", ""); // React knows no such property
        }}
        type="file"
        hidden
        aria-label={label}
        onChange={({ currentTarget }) => {
          const files = [...(currentTarget.files ?? [])];
          currentTarget.value = ""; // the same folder may be chosen again
          onChosen(entriesOf(files));
        }}
      />
    </>
  );
}
