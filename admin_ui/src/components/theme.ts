/** One look for all pages: a quiet teal on neutral greys, generous radii, Inter. */

import {
  type BadgeProps,
  type ButtonProps,
  type CardProps,
  type CSSVariablesResolver,
  createTheme,
  type DrawerProps,
  type MantineColorsTuple,
  type ModalProps,
  type NotificationProps,
  type TableProps,
  type TooltipProps,
} from "@mantine/core";

const TEAL: MantineColorsTuple = [
  "#effaf8",
  "#d5f2ec",
  "#abe4da",
  "#79cfc2",
  "#4cb5a7",
  "#2f9a8d",
  "#1f8176",
  "#176a61",
  "#12564f",
  "#0e443f",
];

const TINTED = ["teal", "blue", "red", "yellow", "orange", "grape"] as const;

/** Tints instead of Mantine's saturated fills for everything with the variant `light`. */
export const cssVariables: CSSVariablesResolver = () => {
  const light: Record<string, string> = {
    "--mantine-color-gray-light": "#eef0f2",
    "--mantine-color-dimmed": "#5a626a", // 6 to 1 on white; Mantine's own has 3.3
  };
  const dark: Record<string, string> = {
    "--mantine-color-gray-light": "#3a3d42",
    "--mantine-color-dimmed": "#a3aab2",
  };
  for (const color of TINTED) {
    const name = `--mantine-color-${color}`;
    light[`${name}-light`] = `color-mix(in srgb, var(${name}-6) 11%, transparent)`;
    light[`${name}-light-hover`] = `color-mix(in srgb, var(${name}-6) 16%, transparent)`;
    light[`${name}-light-color`] = `color-mix(in srgb, var(${name}-9) 74%, black)`;
    light[`${name}-text`] = `var(${name}-light-color)`; // Mantine's own has 3.3 to 1 on white
    dark[`${name}-light`] = `color-mix(in srgb, var(${name}-5) 16%, transparent)`;
    dark[`${name}-light-hover`] = `color-mix(in srgb, var(${name}-5) 22%, transparent)`;
    dark[`${name}-light-color`] = `var(${name}-3)`;
    dark[`${name}-text`] = `var(${name}-light-color)`;
  }
  light["--mantine-color-error"] = "var(--mantine-color-red-text)";
  dark["--mantine-color-error"] = "var(--mantine-color-red-text)";
  return { variables: {}, light, dark };
};

/** Of dialogs, panels and messages that are closed by a cross. */
const CLOSE = { "aria-label": "Close" } as const;

/** A dialog's head is no second banner of the page. */
const NO_BANNER = { header: { role: "presentation" } } as const;

function usually<Props>(defaultProps: Partial<Props>) {
  return { defaultProps };
}

export const theme = createTheme({
  colors: { teal: TEAL },
  primaryColor: "teal",
  primaryShade: { light: 7, dark: 6 },
  defaultRadius: "md",
  cursorType: "pointer",
  respectReducedMotion: true,
  fontFamily: "'Inter Variable', system-ui, -apple-system, 'Segoe UI', sans-serif",
  fontFamilyMonospace: "ui-monospace, 'SF Mono', Menlo, 'DejaVu Sans Mono', monospace",
  headings: {
    fontWeight: "650",
    sizes: { h1: { fontSize: "1.5rem" }, h2: { fontSize: "1.125rem" }, h3: { fontSize: "1rem" } },
  },
  // Not by Badge.extend() and so on: with it the components themselves would come with the door.
  components: {
    Badge: {
      ...usually<BadgeProps>({ variant: "light", radius: "sm", tt: "none", fw: 500 }),
      // Of one word or two: cut in a narrow table it would say nothing.
      styles: { root: { minWidth: "max-content" } },
    },
    Button: usually<ButtonProps>({ fw: 550 }),
    Card: usually<CardProps>({ withBorder: true, padding: "lg" }),
    Drawer: usually<DrawerProps>({ closeButtonProps: CLOSE, attributes: NO_BANNER }),
    Notification: usually<NotificationProps>({ closeButtonProps: CLOSE }),
    Modal: usually<ModalProps>({
      centered: true,
      closeButtonProps: CLOSE,
      attributes: NO_BANNER,
      overlayProps: { backgroundOpacity: 0.45, blur: 2 },
    }),
    Table: usually<TableProps>({ verticalSpacing: "sm", horizontalSpacing: "lg" }),
    Tooltip: usually<TooltipProps>({ withArrow: true, openDelay: 250 }),
  },
});
