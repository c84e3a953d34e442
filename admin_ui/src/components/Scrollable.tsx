import type { CSSProperties, ReactNode, Ref } from "react";
import classes from "./Scrollable.module.css";

interface ScrollableProps {
  label: string;
  children: ReactNode;
  style?: CSSProperties;
  className?: string;
  ref?: Ref<HTMLElement>;
}

/** A region with a name that scrolls within itself, and so can be reached by keyboard. */
export function Scrollable({ label, children, style, className, ref }: ScrollableProps) {
  return (
    <section
      ref={ref}
      aria-label={label}
      // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls has to be reached by keyboard
      tabIndex={0}
      className={className ? `${classes.scrollable} ${className}` : classes.scrollable}
      style={style}
    >
      {children}
    </section>
  );
}
