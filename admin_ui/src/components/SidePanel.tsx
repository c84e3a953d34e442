import { Drawer } from "@mantine/core";
import type { ReactNode } from "react";
import { useQueryParams } from "./searchParams";

/** A value of the address's query, and how to set it; null takes it away. */
export function useParam(name: string): [string | null, (value: string | null) => void] {
  const [params, setParams] = useQueryParams();
  return [
    params.get(name),
    (value) =>
      setParams((before) => {
        if (value === null) before.delete(name);
        else before.set(name, value);
        return before;
      }),
  ];
}

interface SidePanelProps {
  /** Open while the address has `?param=...`, so that a link leads to it. */
  param: string;
  title: (value: string) => ReactNode;
  children: (value: string) => ReactNode;
}

export function SidePanel({ param, title, children }: SidePanelProps) {
  const [value, setValue] = useParam(param);
  return (
    <Drawer
      opened={value !== null}
      onClose={() => setValue(null)}
      position="right"
      size="lg"
      title={value === null ? "" : title(value)}
      closeButtonProps={{ "aria-label": "Close the panel" }}
    >
      {value !== null && children(value)}
    </Drawer>
  );
}
