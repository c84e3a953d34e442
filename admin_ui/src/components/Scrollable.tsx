import { useMergedRef } from "@mantine/hooks";
import { type CSSProperties, type ReactNode, type Ref, useEffect, useRef } from "react";
import classes from "./Scrollable.module.css";

interface ScrollableProps {
  label: string;
  children: ReactNode;
  style?: CSSProperties;
  className?: string;
  ref?: Ref<HTMLElement>;
}

/**
 * A group with a name that scrolls within itself, and so can be reached by keyboard. Where there is
 * more to the right its edge fades; on a phone the first column of a table stays in sight.
 */
export function Scrollable({ label, children, style, className, ref }: ScrollableProps) {
  const box = useRef<HTMLDivElement>(null);
  const merged = useMergedRef(box, ref);
  useEffect(() => {
    const at = box.current;
    if (at === null) return;
    const look = () => {
      at.toggleAttribute("data-more", at.scrollLeft + at.clientWidth < at.scrollWidth - 1);
    };
    const watch = new ResizeObserver(look);
    watch.observe(at);
    for (const child of at.children) watch.observe(child);
    at.addEventListener("scroll", look, { passive: true });
    return () => {
      watch.disconnect();
      at.removeEventListener("scroll", look);
    };
  }, []);
  return (
    // biome-ignore lint/a11y/useSemanticElements: no fieldset, and no landmark: panels are those
    <div
      ref={merged}
      role="group"
      aria-label={label}
      // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls has to be reached by keyboard
      tabIndex={0}
      className={className ? `${classes.scrollable} ${className}` : classes.scrollable}
      style={style}
    >
      {children}
    </div>
  );
}
