/** Tells whether somebody is at the page. */

const UNATTENDED_MS = 5 * 60_000;
const INPUTS = ["pointerdown", "pointermove", "keydown", "wheel", "touchstart"];

let lastInputMs = Date.now();

/** Notes each touch of the page. */
export function watchInputs(page: EventTarget): void {
  const note = () => {
    lastInputMs = Date.now();
  };
  for (const kind of INPUTS) page.addEventListener(kind, note, { capture: true, passive: true });
}

/** Whether nobody has touched the page for five minutes. What it fetches then by itself does not
 * keep the session open. */
export function isUnattended(): boolean {
  return Date.now() - lastInputMs > UNATTENDED_MS;
}
