/** The playground's setup: from a link, else as it was left in this tab, else a new one. */

import { useCallback, useState } from "react";
import { useSearchParams } from "react-router";
import { decodeSetup, encodeSetup, PARAMS, type Setup } from "./model";
import type { ModelOption } from "./queries";

const KEPT = "tenora.playground";

export interface Told {
  /** What a link says, else what was left in this tab. */
  setup: Setup | null;
  isLinked: boolean;
  /** `?left=name` names the first model, as links from other pages do; `right=base`: beside the base model. */
  wanted: string | null;
  isBesideBase: boolean;
}

/** What a playground is to begin with, before it is known which models there are. */
export function useTold(): Told {
  const [params] = useSearchParams();
  const [told] = useState<Told>(() => {
    const linked = decodeSetup(window.location.hash.slice(1));
    const kept = decodeSetup(sessionStorage.getItem(KEPT) ?? "");
    return {
      setup: linked ?? kept,
      isLinked: linked !== null,
      wanted: params.get("left"),
      isBesideBase: params.get("right") === "base",
    };
  });
  return told;
}

export function namesOf({ setup, wanted }: Told): string[] {
  return [...new Set([...(setup?.models ?? []), ...(wanted === null ? [] : [wanted])])];
}

/** Two to begin with: what is wanted, or the first adapter, beside another one or the base model. */
function firstModels(
  options: readonly ModelOption[],
  wanted: string | null,
  isBesideBase: boolean,
): string[] {
  const names = options.map(({ value }) => value);
  const base = options.find(({ isBase }) => isBase)?.value;
  const adapters = names.filter((name) => name !== base && !name.includes("@"));
  const first = wanted ?? adapters[0] ?? base;
  const other = isBesideBase ? undefined : adapters.find((name) => name !== first);
  const second = other ?? base;
  return [...new Set([first, second])].filter((model) => model !== undefined);
}

/** `askable`: those of `namesOf(told)` that can be asked. */
export function useSetup(
  options: readonly ModelOption[],
  told: Told,
  askable: readonly string[],
): [Setup, (setup: Setup) => void] {
  const [setup, setSetup] = useState<Setup>(() => {
    const wanted = told.wanted !== null && askable.includes(told.wanted) ? told.wanted : null;
    const models = firstModels(options, wanted, told.isBesideBase);
    if (told.setup === null)
      return { prompt: "", system: "", models, params: PARAMS, isTogether: false };
    const known = told.setup.models.filter((model) => askable.includes(model));
    const isAsked = told.wanted !== null && !told.isLinked;
    return { ...told.setup, models: isAsked || known.length === 0 ? models : known };
  });
  const change = useCallback((next: Setup) => {
    setSetup(next);
    sessionStorage.setItem(KEPT, encodeSetup(next));
  }, []);
  return [setup, change];
}
