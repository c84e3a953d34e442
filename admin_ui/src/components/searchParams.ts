import { useCallback } from "react";
import { type NavigateOptions, useSearchParams } from "react-router";

type Change = (now: URLSearchParams) => URLSearchParams;

/**
 * The address's query, and how to change it. A change is of the address as it is when it is made,
 * not as it was when the page was last drawn: two in a row both hold.
 */
export function useQueryParams(): [
  URLSearchParams,
  (change: Change, options?: NavigateOptions) => void,
] {
  const [params, setParams] = useSearchParams();
  const change = useCallback(
    (next: Change, options?: NavigateOptions) =>
      setParams(next(new URLSearchParams(window.location.search)), options),
    [setParams],
  );
  return [params, change];
}
