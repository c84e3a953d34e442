/** The document's title, and where the focus goes when a page is opened from another. */

import { type RefObject, useEffect, useRef } from "react";
import { useLocation } from "react-router";

let opened: string | null = null;

/** Names the page; the ref is for its heading, which is read out after navigation. */
export function useTitle(title: string): RefObject<HTMLHeadingElement | null> {
  const heading = useRef<HTMLHeadingElement>(null);
  const { pathname } = useLocation();
  useEffect(() => {
    document.title = `${title} · Tenora`;
  }, [title]);
  useEffect(() => {
    // The first page of a visit leaves the focus where the browser puts it, and among the tabs of
    // a page it stays with them, for the next arrow key.
    const isFirst = opened === null || opened === pathname;
    const isTab = document.activeElement?.role === "tab";
    if (!isFirst && !isTab) heading.current?.focus({ preventScroll: true });
    opened = pathname;
  }, [pathname]);
  return heading;
}
