import type { CSSProperties } from "react";

/** A style that sets one custom property, which the style sheet makes a colour or a width of. */
export function variable(name: string, value: string): CSSProperties {
  return { [`--${name}`]: value } as CSSProperties;
}
