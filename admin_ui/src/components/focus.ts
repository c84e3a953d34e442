/** Where the focus goes when a dialog goes. */

import { useEffect, useState } from "react";

/**
 * Whatever had the focus when the dialog came has it again when it goes, closed or unmounted,
 * unless something else took it meanwhile.
 */
export function useFocusBack(isOpen = true): void {
  const [before, setBefore] = useState<Element | null>(null);
  const [wasOpen, setWasOpen] = useState(false);
  if (isOpen !== wasOpen) {
    setWasOpen(isOpen);
    if (isOpen) setBefore(holder());
  }
  useEffect(() => {
    if (!isOpen) return undefined;
    return () => {
      // Only now is the dialog on its way out, and with it what has the focus.
      setTimeout(() => {
        const now = document.activeElement;
        const isLost = now === document.body || now?.closest('[role="dialog"]');
        if (isLost && before instanceof HTMLElement) before.focus({ preventScroll: true });
      });
    };
  }, [isOpen, before]);
}

/** What has the focus; for an entry of a menu, which goes, the button that opened the menu. */
function holder(): Element | null {
  const active = document.activeElement;
  const menu = active?.closest('[role="menu"]');
  return document.getElementById(menu?.getAttribute("aria-labelledby") ?? "") ?? active;
}
