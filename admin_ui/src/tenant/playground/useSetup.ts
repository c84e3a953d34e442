/** The playground's setup: from a link, else as it was left in this tab, else a new one. */

import { useCallback, useState } from "react";
import { useSearchParams } from "react-router";
import { decodeSetup, encodeSetup, PARAMS, type Setup } from "./model";
import type { ModelOption } from "./queries";

const KEPT = "tenora.playground";

/** Two to begin with: what is wanted, or the first adapter, beside another one or the base model. */
function firstModels(options: readonly ModelOption[], wanted: string | null): string[] {
  const names = options.map(({ value }) => value);
  const base = options.find(({ label }) => label.endsWith("(base model)"))?.value;
  const adapters = names.filter((name) => name !== base && !name.includes("@"));
  const first = wanted && names.includes(wanted) ? wanted : (adapters[0] ?? base);
  const second = adapters.find((name) => name !== first) ?? base;
  return [...new Set([first, second])].filter((model) => model !== undefined);
}

/** `?left=name` names the first model, as links from other pages do. */
export function useSetup(options: readonly ModelOption[]): [Setup, (setup: Setup) => void] {
  const [params] = useSearchParams();
  const [setup, setSetup] = useState<Setup>(() => {
    const linked = decodeSetup(window.location.hash.slice(1));
    const kept = decodeSetup(sessionStorage.getItem(KEPT) ?? "");
    const wanted = params.get("left");
    const models = firstModels(options, wanted);
    const found = linked ?? kept;
    if (found === null)
      return { prompt: "", system: "", models, params: PARAMS, isTogether: false };
    const known = found.models.filter((model) => options.some(({ value }) => value === model));
    const isAsked = wanted !== null && linked === null;
    return { ...found, models: isAsked || known.length === 0 ? models : known };
  });
  const change = useCallback((next: Setup) => {
    setSetup(next);
    sessionStorage.setItem(KEPT, encodeSetup(next));
  }, []);
  return [setup, change];
}
