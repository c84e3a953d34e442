/** Where the focus goes when a dialog goes. */

import { useEffect, useState } from "react";

/**
 * For a dialog that is unmounted rather than closed: whatever had the focus when it came has it
 * again, unless something else took it meanwhile.
 */
export function useFocusBack(): void {
  const [before] = useState(() => document.activeElement);
  useEffect(
    () => () => {
      // Only now is the dialog taken out, and with it what had the focus.
      setTimeout(() => {
        if (document.activeElement === document.body && before instanceof HTMLElement)
          before.focus({ preventScroll: true });
      });
    },
    [before],
  );
}
